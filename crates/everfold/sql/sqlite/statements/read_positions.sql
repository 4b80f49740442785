-- Where the next events of the log stand.
--   ?1 after position integer (exclusive), ?2 up to position integer (inclusive), ?3 most rows integer
-- Rows: positions, rising.
SELECT position
  FROM everfold_events
 WHERE position > ?1 AND position <= ?2
 ORDER BY position
 LIMIT ?3
