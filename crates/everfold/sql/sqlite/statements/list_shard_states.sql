-- The shards of a generation, with who runs them.
--   ?1 generation integer
-- Rows: shard, position, epoch, owner, its name if it lives, moved_at, attempts, failure; by shard.
SELECT c.shard, c.position, c.epoch, c.owner, w.name, c.moved_at, c.attempts, c.failure
  FROM everfold_checkpoints c
  LEFT JOIN everfold_workers w
    ON w.id = c.owner AND w.expires_at > CAST(unixepoch('subsec') * 1000 AS INTEGER)
 WHERE c.generation = ?1
 ORDER BY c.shard
