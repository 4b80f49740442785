-- Adds one event to the end of its stream; the position is drawn here and never named.
--   ?1 stream_id text, ?2 version integer, ?3 type text, ?4 schema_version integer, ?5 data json,
--   ?6 metadata json, ?7 id text (lower-case uuid), ?8 recorded_at text, NULL for now
-- Changes one row, or none if the id is known already: then see find_event.sql.
-- Locks: the caller holds the write lock, and has checked the stream's version under it.
INSERT INTO everfold_events
    (stream_id, version, type, schema_version, data, metadata, id, recorded_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7,
        coalesce(?8, strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'))
ON CONFLICT (id) DO NOTHING
