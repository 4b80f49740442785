-- Puts events aside, or replaces what is known of them.
-- $1 generation integer, $2 positions bigint[], $3 keys text[], $4 behind bigint[], $5 errors text[],
-- $6 attempts integer[]. Locks: the rows.
INSERT INTO everfold.dead_letters AS d (generation, position, key, behind, error, attempts, tried_at)
SELECT $1, u.position, u.key, u.behind, u.error, u.attempts,
       CASE WHEN u.behind IS NULL THEN clock_timestamp() END
  FROM unnest($2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::integer[])
       AS u(position, key, behind, error, attempts)
 ORDER BY u.position
ON CONFLICT (generation, position) DO UPDATE
   SET key = EXCLUDED.key, behind = EXCLUDED.behind, error = EXCLUDED.error,
       attempts = EXCLUDED.attempts, tried_at = coalesce(EXCLUDED.tried_at, d.tried_at),
       retry_wanted = false
