-- Deletes what is older than an age from the oldest rows. Only so many are looked at: they are in the
-- order of time, so where the last of them is too young, all others are.
--   ?1 age text, as "-60 seconds", ?2 most rows integer
-- Locks: the caller holds the write lock.
DELETE FROM everfold_system_messages
 WHERE id IN (
    SELECT id
      FROM (SELECT id, recorded_at FROM everfold_system_messages ORDER BY id LIMIT ?2)
     WHERE recorded_at < strftime('%Y-%m-%dT%H:%M:%f', 'now', ?1) || '000Z')
