-- Completes a new generation: home, tables, status, its checkpoints, a record of it, and, if it is
-- active, that readers see it. One that is spare gets checkpoints and its record when it is put to use.
-- $1 id integer, $2 home text, $3 tables text[], $4 status text, $5 reason text, $6 shards integer,
-- $7 message text, $8 actor text. One row.
WITH completed AS (
    UPDATE everfold.generations
       SET home = $2, tables = $3, status = $4, reason = $5, status_since = clock_timestamp()
     WHERE id = $1
    RETURNING id, projection
), shown AS (
    UPDATE everfold.projections p SET active_generation = c.id
      FROM completed c WHERE p.id = c.projection AND $4 = 'active'
), begun AS (
    INSERT INTO everfold.checkpoints (generation, shard)
    SELECT c.id, s FROM completed c, generate_series(0, $6 - 1) AS s WHERE $4 <> 'spare'
), recorded AS (
    INSERT INTO everfold.system_messages (generation, kind, actor, message)
    SELECT c.id, 'registered', $8, $7 FROM completed c WHERE $4 <> 'spare'
)
SELECT id FROM completed
