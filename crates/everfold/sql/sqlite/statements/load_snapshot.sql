-- The folded state of a stream.
--   ?1 stream_id text, ?2 name text
-- At most one row: version, state_version, state json.
SELECT version, state_version, state
  FROM everfold_stream_snapshots
 WHERE stream_id = ?1 AND name = ?2
