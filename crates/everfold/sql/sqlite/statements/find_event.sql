-- What is stored under an event id.
--   ?1 id text (lower-case uuid)
-- At most one row: position, stream_id, version, type, data.
SELECT position, stream_id, version, type, data FROM everfold_events WHERE id = ?1
