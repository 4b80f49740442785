-- A page of the log, of some types only, where these are a good part of all events: a short range of
-- positions is scanned in order. (The plus keeps the filter out of the choice of an index.)
--   ?1 after position integer (exclusive), ?2 up to position integer (inclusive), ?3 most rows integer,
--   ?4 types json array of text
-- Rows: events, by position.
SELECT position, stream_id, version, id, type, schema_version, data, metadata, recorded_at
  FROM everfold_events
 WHERE position > ?1 AND position <= ?2 AND +type IN (SELECT value FROM json_each(?4))
 ORDER BY position
 LIMIT ?3
