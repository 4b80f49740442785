-- The version of a stream.
--   ?1 stream_id text
-- One row: version integer, NULL if the stream does not exist.
SELECT max(version) FROM everfold_events WHERE stream_id = ?1
