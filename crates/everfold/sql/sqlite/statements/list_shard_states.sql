-- The shards of a generation, with who runs them.
--   ?1 generation integer
-- Rows: shard, position, epoch, owner, its name if it lives, moved_at, attempts, failure, since when the
-- owner runs, its name in any case, when the lease ends in milliseconds; by shard.
SELECT c.shard, c.position, c.epoch, c.owner,
       CASE WHEN w.expires_at > CAST(unixepoch('subsec') * 1000 AS INTEGER) THEN w.name END,
       c.moved_at, c.attempts, c.failure, w.started_at, w.name, c.expires_at
  FROM everfold_checkpoints c
  LEFT JOIN everfold_workers w ON w.id = c.owner
 WHERE c.generation = ?1
 ORDER BY c.shard
