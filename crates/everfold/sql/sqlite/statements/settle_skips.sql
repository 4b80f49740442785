-- Takes out open skips whose events are applied, or put aside, in this transaction: by a batch that
-- comes by them, or by a switch.
--   ?1 generation integer, ?2 after position integer, ?3 up to position integer
-- Rows: position and key of each, in no order.
-- Locks: the caller holds the write lock.
DELETE FROM everfold_skips
 WHERE generation = ?1 AND position > ?2 AND position <= ?3
RETURNING position, key
