-- Takes the oldest open skips out, apart from those of keys that wait behind a dead letter. In the
-- order of positions, so that no skip of a key goes before an earlier one.
--   ?1 generation integer, ?2 most rows integer, ?3 the last position that is owed integer
-- Rows: position and key of each, in no order.
-- Locks: the caller holds the write lock.
DELETE FROM everfold_skips
 WHERE generation = ?1 AND position IN (
    SELECT s.position
      FROM everfold_skips s
     WHERE s.generation = ?1 AND s.position <= ?3
       AND NOT EXISTS (SELECT 1 FROM everfold_dead_letters d
                        WHERE d.generation = s.generation AND d.key = s.key)
     ORDER BY s.position
     LIMIT ?2)
RETURNING position, key
