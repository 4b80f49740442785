-- Moves a shard's checkpoint and ends its failures. A lease that is in use lives as long as its
-- worker does: ticks leave rows alone that a batch has locked.
-- $1 generation integer, $2 shard integer, $3 epoch bigint, $4 from bigint, $5 to bigint.
-- No row: epoch or position are not the ones given, and nothing was changed.
-- Locks: the row, which the caller has locked already.
UPDATE everfold.checkpoints c
   SET position = $5, moved_at = clock_timestamp(), attempts = 0, failure = NULL,
       expires_at = greatest(c.expires_at,
           (SELECT w.expires_at FROM everfold.workers w WHERE w.id = c.owner))
 WHERE c.generation = $1 AND c.shard = $2 AND c.epoch = $3 AND c.position = $4
RETURNING c.position
