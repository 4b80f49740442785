-- Every generation that is neither retired nor spare, in the order of their ids. Takes no locks.
SELECT g.id, p.namespace, p.name, g.version, g.kind, g.lifecycle, g.event_types, g.key_fields, g.shards,
       g.definition_hash, g.definition -> 'settings', g.on_error, g.home, g.tables, g.status, g.reason,
       (g.id = p.active_generation) IS TRUE AS is_active
  FROM everfold.generations g
  JOIN everfold.projections p ON p.id = g.projection
 WHERE g.status NOT IN ('retired', 'spare')
 ORDER BY g.id
