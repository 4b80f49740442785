-- Asks for a rebuild of a projection that has none open, and records it. What readers see at this
-- moment is what it switches from. Its projection's row is locked by the caller.
-- $1 projection integer, $2 kind text, $3 version integer, $4 definition_hash text, $5 target integer or
-- NULL, $6 options jsonb, $7 requested_by text, $8 boolean: only if readers see no version of it. One
-- row: its id. None if there is an open one, if the target or the
-- projection is being removed, or if readers see one.
WITH requested AS (
    INSERT INTO everfold.rebuilds (projection, kind, version, definition_hash, target, source, options,
            requested_by)
    SELECT p.id, $2, $3, $4, $5, p.active_generation, $6, $7
      FROM everfold.projections p
     WHERE p.id = $1 AND (NOT $8 OR p.active_generation IS NULL)
       AND NOT EXISTS (SELECT FROM everfold.rebuilds o WHERE o.projection = $1 AND o.finished_at IS NULL)
       -- What was removed has generations, and all of them are retired.
       AND (SELECT coalesce(bool_or(g.status <> 'retired'), true) FROM everfold.generations g
             WHERE g.projection = $1)
       AND ($5 IS NULL OR EXISTS (SELECT FROM everfold.generations g
                                   WHERE g.id = $5 AND g.projection = $1 AND g.status <> 'retired'))
    ON CONFLICT DO NOTHING
    RETURNING id, target, source
), recorded AS (
    INSERT INTO everfold.system_messages (generation, kind, actor, message)
    SELECT coalesce(q.target, q.source, (SELECT max(g.id) FROM everfold.generations g WHERE g.projection = $1)),
           'rebuild', $7, format('rebuild %s was asked for: %s, version %s', q.id, $2, $3)
      FROM requested q
)
SELECT id FROM requested
