-- Stores the folded state of a stream, unless a later one is there already.
--   ?1 stream_id text, ?2 name text, ?3 version integer, ?4 state_version integer, ?5 state json
-- Locks: the write lock.
INSERT INTO everfold_stream_snapshots AS s (stream_id, name, version, state_version, state)
VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (stream_id, name) DO UPDATE
   SET version = excluded.version, state_version = excluded.state_version,
       state = excluded.state, taken_at = strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'
 WHERE s.version < excluded.version OR s.state_version <> excluded.state_version
