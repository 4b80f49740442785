-- What a plan has to know of generations beside what list_generations.sql says, the retired ones too.
-- Rows: id, projection's namespace, name, version, status, definition, whether a live worker carries it,
-- the prefix of its tables; in the order of their ids.
SELECT g.id, p.namespace, p.name, g.version, g.status, g.definition,
       EXISTS (SELECT 1 FROM everfold_workers w, json_each(w.carries) c
                WHERE w.expires_at > CAST(unixepoch('subsec') * 1000 AS INTEGER) AND c.value = g.id),
       g.home
  FROM everfold_generations g
  JOIN everfold_projections p ON p.id = g.projection
 ORDER BY g.id
