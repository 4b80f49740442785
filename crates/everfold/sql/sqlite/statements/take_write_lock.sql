-- Takes the write lock of the file without changing anything, before the transaction reads: one
-- that has read first cannot always be upgraded.
-- Locks: the write lock, until the transaction ends.
UPDATE everfold_store SET id = id WHERE 0
