-- Events of one stream from a version back to the first.
--   ?1 stream_id text, ?2 from version integer (inclusive), ?3 most rows integer
-- Rows: events, by version, the last first.
SELECT position, stream_id, version, id, type, schema_version, data, metadata, recorded_at
  FROM everfold_events
 WHERE stream_id = ?1 AND version <= ?2
 ORDER BY version DESC
 LIMIT ?3
