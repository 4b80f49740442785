-- Where the events of one type stand in a range of positions. Run once per type and merged by the
-- caller: one statement for many types would have to sort all of their events for every page.
--   ?1 type text, ?2 after position integer (exclusive), ?3 up to position integer (inclusive),
--   ?4 most rows integer
-- Rows: position, rising; read from the index alone.
SELECT position
  FROM everfold_events INDEXED BY everfold_events_type_position_idx
 WHERE type = ?1 AND position > ?2 AND position <= ?3
 ORDER BY position
 LIMIT ?4
