-- Records what an append in Rust could not apply to its inline projections: dead letters, the events
-- behind them, and a message for each event that failed.
--
--   $1 generations integer[], $2 positions bigint[], $3 keys text[], $4 behind bigint[] (NULL: failed),
--   $5 errors text[] (NULL: waits), $6 whether it is left out for good, boolean[]
--
-- Rows: none. Locks: none beyond the rows it writes.
WITH given_up AS (
    SELECT u.* FROM unnest($1::integer[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::boolean[])
        AS u(generation, position, key, behind, error, left_out)
), letters AS (
    INSERT INTO everfold.dead_letters (generation, position, key, behind, error, attempts, tried_at)
    SELECT g.generation, g.position, g.key, g.behind, g.error, CASE WHEN g.behind IS NULL THEN 1 ELSE 0 END,
           CASE WHEN g.behind IS NULL THEN clock_timestamp() END
      FROM given_up g WHERE NOT g.left_out
)
INSERT INTO everfold.system_messages (generation, kind, position, key, actor, message)
SELECT g.generation, CASE WHEN g.left_out THEN 'skipped' ELSE 'dead-letter' END, g.position, g.key,
       'append', g.error
  FROM given_up g WHERE g.behind IS NULL ORDER BY g.position
