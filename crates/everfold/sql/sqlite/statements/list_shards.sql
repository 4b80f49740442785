-- Every shard, with who holds a lease that has not expired, and whether it is to be run. Without those
-- that a rebuild fills and has not shown to readers: they are its worker's. What is being built of a
-- projection that readers see no version of is left to rebuilds, too.
-- Rows: generation, shard, owner or NULL, runnable; in this order.
SELECT c.generation, c.shard,
       CASE WHEN c.expires_at > CAST(unixepoch('subsec') * 1000 AS INTEGER) THEN c.owner END,
       g.status IN ('active', 'kept') OR (g.status = 'building' AND p.active_generation IS NOT NULL)
  FROM everfold_checkpoints c
  JOIN everfold_generations g ON g.id = c.generation
  JOIN everfold_projections p ON p.id = g.projection
 WHERE NOT EXISTS (SELECT 1 FROM everfold_rebuilds r
                    WHERE r.target = c.generation AND r.finished_at IS NULL
                      AND r.flipped_at IS NULL)
 ORDER BY c.generation, c.shard
