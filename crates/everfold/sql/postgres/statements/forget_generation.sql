-- Forgets all about a generation whose schema is gone but that it was there; what was never put to use
-- leaves no record.
-- $1 generation integer, $2 reason text, $3 actor text. One row.
WITH checkpoints AS (
    DELETE FROM everfold.checkpoints WHERE generation = $1
), skips AS (
    DELETE FROM everfold.skips WHERE generation = $1
), dead_letters AS (
    DELETE FROM everfold.dead_letters WHERE generation = $1
), parts AS (
    DELETE FROM everfold.rebuild_parts
     WHERE rebuild IN (SELECT r.id FROM everfold.rebuilds r WHERE r.target = $1)
), recorded AS (
    INSERT INTO everfold.system_messages (generation, kind, actor, message)
    SELECT $1, 'rebuild', $3, $2
     WHERE EXISTS (SELECT FROM everfold.checkpoints c WHERE c.generation = $1)
)
UPDATE everfold.generations SET reason = $2 WHERE id = $1 RETURNING id
