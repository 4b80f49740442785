-- A sign of life of whoever works on a rebuild, with progress.
--   ?1 rebuild integer, ?2 epoch integer, ?3 milliseconds to live integer, ?4 phase text or NULL,
--   ?5 events done integer, ?6 events in all integer, ?7 message text or NULL, ?8 report JSON or NULL
-- Changes no row if the lease is lost.
-- Locks: the caller holds the write lock.
UPDATE everfold_rebuilds
   SET expires_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?3,
       phase = coalesce(?4, phase), events_done = ?5, events_total = ?6, message = ?7, report = coalesce(?8, report)
 WHERE id = ?1 AND epoch = ?2 AND finished_at IS NULL
