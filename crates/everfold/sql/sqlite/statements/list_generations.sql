-- Generations with the names of their projections: those that are not retired, or those that are and
-- have not been removed yet.
--   ?1 id integer, NULL for all; ?2 whether retired ones
-- Rows: what a generation is, by id.
SELECT g.id, p.namespace, p.name, g.version, g.kind, g.lifecycle, g.event_types, g.key_fields,
       g.shards, g.definition_hash, g.definition -> '$.settings', g.home, g.tables, g.status,
       g.reason, g.id IS p.active_generation, g.status_since
  FROM everfold_generations g
  JOIN everfold_projections p ON p.id = g.projection
 WHERE (g.status = 'retired') = ?2 AND g.home <> '' AND (?1 IS NULL OR g.id = ?1)
 ORDER BY g.id
