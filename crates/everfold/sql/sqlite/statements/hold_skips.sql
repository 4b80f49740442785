-- Lets open skips of keys with a dead letter wait behind it, as held events do. The skips themselves
-- are deleted afterwards.
--   ?1 generation integer, ?2 up to position integer
-- Locks: the caller holds the write lock.
INSERT INTO everfold_dead_letters (generation, position, key, behind)
SELECT s.generation, s.position, s.key, min(d.position)
  FROM everfold_skips s
  JOIN everfold_dead_letters d
    ON d.generation = s.generation AND d.key = s.key AND d.behind IS NULL
 WHERE s.generation = ?1 AND s.position <= ?2
 GROUP BY s.position
    ON CONFLICT (generation, position) DO NOTHING
