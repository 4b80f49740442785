-- Retired generations whose schema is still there, in the order of their ids: the columns of
-- list_generations.sql. Takes no locks.
SELECT g.id, p.namespace, p.name, g.version, g.kind, g.lifecycle, g.event_types, g.key_fields, g.shards,
       g.definition_hash, g.definition -> 'settings', g.on_error, g.home, g.tables, g.status, g.reason,
       (g.id = p.active_generation) IS TRUE AS is_active
  FROM everfold.generations g
  JOIN everfold.projections p ON p.id = g.projection
  JOIN pg_catalog.pg_namespace n ON n.nspname = g.home
 WHERE g.status = 'retired'
 ORDER BY g.id
