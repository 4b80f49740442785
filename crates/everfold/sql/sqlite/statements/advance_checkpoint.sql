-- Moves a shard's checkpoint on and clears its failures, if the lease still holds and nobody else
-- has moved it.
--   ?1 generation integer, ?2 shard integer, ?3 epoch integer, ?4 from position integer,
--   ?5 to position integer
-- Changes no row if the lease is lost.
-- Locks: the caller holds the write lock.
UPDATE everfold_checkpoints
   SET position = ?5, moved_at = strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z',
       attempts = 0, failure = NULL
 WHERE generation = ?1 AND shard = ?2 AND epoch = ?3 AND position = ?4
