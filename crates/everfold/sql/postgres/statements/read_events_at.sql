-- The events at some positions, in rising order. Each is looked up by itself, so that a plan that is
-- made while the table is small, and kept, uses the index later too.
-- $1 positions bigint[]. Takes no locks.
SELECT e.position, e.stream_id, e.version, e.id, e.type, e.schema_version, e.data, e.metadata,
       e.recorded_at
  FROM unnest($1) AS p(at)
 CROSS JOIN LATERAL (SELECT * FROM everfold.events WHERE position = p.at LIMIT 1) e
 ORDER BY e.position
