-- The events at some positions, in rising order. $1 positions bigint[]. Takes no locks.
SELECT position, stream_id, version, id, type, schema_version, data, metadata, recorded_at
  FROM everfold.events
 WHERE position = ANY ($1)
 ORDER BY position
