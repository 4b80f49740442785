-- The shards that a worker runs, without those that a rebuild fills (see list_shards.sql).
--   ?1 worker text (uuid)
-- Rows: generation, shard, epoch, position; in this order.
SELECT c.generation, c.shard, c.epoch, c.position
  FROM everfold_checkpoints c
 WHERE c.owner = ?1
   AND NOT EXISTS (SELECT 1 FROM everfold_rebuilds r
                    WHERE r.target = c.generation AND r.finished_at IS NULL
                      AND r.flipped_at IS NULL)
 ORDER BY c.generation, c.shard
