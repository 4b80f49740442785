-- A page of the log, of some types only, where these are a good part of all events: a short range of
-- positions is scanned in order. (OFFSET 0 keeps the filter out of the choice of an index.)
-- $1 after bigint, $2 up_to bigint, $3 max bigint, $4 types text[]. Takes no locks.
SELECT e.position, e.stream_id, e.version, e.id, e.type, e.schema_version, e.data, e.metadata,
       e.recorded_at
  FROM (SELECT * FROM everfold.events
         WHERE position > $1 AND position <= $2
         ORDER BY position OFFSET 0) e
 WHERE e.type = ANY ($4)
 ORDER BY e.position
 LIMIT $3
