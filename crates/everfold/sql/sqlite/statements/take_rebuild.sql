-- Takes a rebuild that nobody works on, or whose worker died.
--   ?1 rebuild integer, ?2 worker text (uuid), ?3 the worker's name text,
--   ?4 milliseconds to live integer
-- One row with the epoch and the target, or none.
-- Locks: the caller holds the write lock.
UPDATE everfold_rebuilds
   SET epoch = epoch + 1, owner = ?2, owner_name = ?3,
       expires_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?4
 WHERE id = ?1 AND finished_at IS NULL
   AND (owner IS NULL OR coalesce(expires_at, 0) <= CAST(unixepoch('subsec') * 1000 AS INTEGER))
RETURNING epoch, target
