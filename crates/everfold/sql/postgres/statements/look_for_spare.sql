-- How a projection stands as to a generation made ahead of time.
-- $1 namespace text, $2 name text, $3 version integer, $4 definition_hash text. Takes no locks.
-- One row: projection's id; whether readers see this very definition; its spare, or NULL; whether the
-- views show that; whether there are spares of another definition; whether a rebuild is
-- open that has not switched; whether the user may make one. None if there is no such projection.
SELECT p.id, coalesce((a.version, a.definition_hash) = ($3, $4), false), s.id, s.reason IS NULL,
       EXISTS (SELECT FROM everfold.generations g
                WHERE g.projection = p.id AND g.status = 'spare'
                  AND (g.version, g.definition_hash) IS DISTINCT FROM (a.version, a.definition_hash)),
       EXISTS (SELECT FROM everfold.rebuilds r WHERE r.projection = p.id
                  AND r.finished_at IS NULL AND r.flipped_at IS NULL),
       pg_catalog.has_table_privilege('everfold.generations', 'INSERT')
           AND pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')
           OR EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = 'everfold_admin'
                         AND pg_catalog.pg_has_role(r.oid, 'MEMBER')
                         AND pg_catalog.has_database_privilege(r.oid, pg_catalog.current_database(), 'CREATE'))
  FROM everfold.projections p
  LEFT JOIN everfold.generations a ON a.id = p.active_generation
  LEFT JOIN LATERAL (
       SELECT g.id, g.reason FROM everfold.generations g
        WHERE g.projection = p.id AND g.status = 'spare' AND (g.version, g.definition_hash) = ($3, $4)
        ORDER BY g.id DESC LIMIT 1) s ON true
 WHERE p.namespace = $1 AND p.name = $2
