-- A page of the log. The mark ($2) must have been read in an earlier statement.
-- $1 after bigint, $2 up_to bigint, $3 max bigint. Takes no locks.
SELECT position, stream_id, version, id, type, schema_version, data, metadata, recorded_at
  FROM everfold.events
 WHERE position > $1 AND position <= $2
 ORDER BY position
 LIMIT $3
