-- Puts an event aside: one that failed, or one that waits behind such a one. Of a row that is there
-- already, created_at stays.
--   ?1 generation integer, ?2 position integer, ?3 key text, ?4 behind position integer or NULL,
--   ?5 error text or NULL, ?6 attempts integer
-- Locks: the caller holds the write lock.
INSERT INTO everfold_dead_letters (generation, position, key, behind, error, attempts, tried_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6,
        CASE WHEN ?4 IS NULL THEN strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z' END)
ON CONFLICT (generation, position) DO UPDATE
   SET key = excluded.key, behind = excluded.behind, error = excluded.error,
       attempts = excluded.attempts, tried_at = coalesce(excluded.tried_at, tried_at),
       retry_wanted = 0
