-- Ends a rebuild.
--   ?1 rebuild integer, ?2 epoch integer, ?3 phase text, ?4 events done integer,
--   ?5 events in all integer, ?6 message text or NULL
-- Changes no row if the lease is lost. Whoever worked on it has no lease any more.
-- Locks: the caller holds the write lock.
UPDATE everfold_rebuilds
   SET phase = ?3, events_done = ?4, events_total = ?5, message = ?6, epoch = epoch + 1,
       owner = NULL, expires_at = NULL,
       finished_at = strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'
 WHERE id = ?1 AND epoch = ?2 AND finished_at IS NULL
