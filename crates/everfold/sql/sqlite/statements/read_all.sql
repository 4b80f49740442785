-- Events of a range of positions.
--   ?1 after position integer (exclusive), ?2 up to position integer (inclusive), ?3 most rows integer
-- Rows: events, by position.
SELECT position, stream_id, version, id, type, schema_version, data, metadata, recorded_at
  FROM everfold_events
 WHERE position > ?1 AND position <= ?2
 ORDER BY position
 LIMIT ?3
