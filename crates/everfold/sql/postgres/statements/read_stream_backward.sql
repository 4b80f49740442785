-- A page of one stream, from a version down.
-- $1 stream_id text, $2 from_version bigint, $3 max bigint. Takes no locks.
SELECT position, stream_id, version, id, type, schema_version, data, metadata, recorded_at
  FROM everfold.events
 WHERE stream_id = $1 AND version <= $2
 ORDER BY version DESC
 LIMIT $3
