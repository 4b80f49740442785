-- Locks the row of a shard, if the lease still holds.
-- $1 generation integer, $2 shard integer, $3 epoch bigint. No row: somebody else runs the shard.
-- Locks: the row, for update, to the end of the transaction.
SELECT position FROM everfold.checkpoints
 WHERE generation = $1 AND shard = $2 AND epoch = $3
   FOR UPDATE
