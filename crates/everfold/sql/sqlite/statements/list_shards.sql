-- Every shard, with who holds a lease that has not expired, and whether it is to be run.
-- Rows: generation, shard, owner or NULL, runnable; in this order.
SELECT c.generation, c.shard,
       CASE WHEN c.expires_at > CAST(unixepoch('subsec') * 1000 AS INTEGER) THEN c.owner END,
       g.status IN ('building', 'active', 'rebuilding', 'kept')
  FROM everfold_checkpoints c
  JOIN everfold_generations g ON g.id = c.generation
 ORDER BY c.generation, c.shard
