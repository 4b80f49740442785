-- A page of the log, of some rare types: the positions come from the index on (type, position), one
-- range a type, so that rare types cost nothing.
-- $1 after bigint, $2 up_to bigint, $3 max bigint, $4 types text[]. Takes no locks.
SELECT e.position, e.stream_id, e.version, e.id, e.type, e.schema_version, e.data, e.metadata,
       e.recorded_at
  FROM (SELECT p.position
          FROM unnest($4::text[]) AS t(type)
          CROSS JOIN LATERAL (
              SELECT i.position FROM everfold.events i
               WHERE i.type = t.type AND i.position > $1 AND i.position <= $2
               ORDER BY i.position LIMIT $3) p
         ORDER BY p.position LIMIT $3) wanted
  JOIN everfold.events e USING (position)
 ORDER BY e.position
