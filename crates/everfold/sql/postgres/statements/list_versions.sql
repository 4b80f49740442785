-- The generations of a projection: the newest version first, and of each version the one that is meant
-- by it first: the one that readers see, else the newest that nobody is building. Read models of the
-- past, built for a look, are not meant by anything.
-- $1 namespace text, $2 name text. Takes no locks.
SELECT g.id, g.version, g.definition_hash, g.definition
  FROM everfold.generations g
  JOIN everfold.projections p ON p.id = g.projection
 WHERE p.namespace = $1 AND p.name = $2 AND g.status NOT IN ('retired', 'spare')
   AND NOT EXISTS (SELECT FROM everfold.rebuilds r WHERE r.target = g.id AND r.kind = 'as-of')
 ORDER BY g.version DESC, (g.id = p.active_generation) IS TRUE DESC,
       EXISTS (SELECT FROM everfold.rebuilds r WHERE r.target = g.id AND r.finished_at IS NULL),
       g.id DESC
