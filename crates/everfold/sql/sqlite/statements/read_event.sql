-- The event at a position.
--   ?1 position integer
-- At most one row: the event.
SELECT position, stream_id, version, id, type, schema_version, data, metadata, recorded_at
  FROM everfold_events
 WHERE position = ?1
