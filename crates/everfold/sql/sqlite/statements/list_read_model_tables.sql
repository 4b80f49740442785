-- The tables that readers see, by projection: its name, the table, whether it is there, whether a view
-- shows it, and whether a primary key or a unique index keeps a row from being there twice.
SELECT p.name, t.value,
       EXISTS (SELECT 1 FROM sqlite_schema s WHERE s.type = 'table' AND s.name = g.home || t.value),
       EXISTS (SELECT 1 FROM sqlite_schema v WHERE v.type = 'view' AND instr(v.sql, g.home || t.value) > 0),
       EXISTS (SELECT 1 FROM pragma_table_info(g.home || t.value) c WHERE c.pk > 0)
           OR EXISTS (SELECT 1 FROM pragma_index_list(g.home || t.value) i WHERE i."unique" = 1)
  FROM everfold_projections p
  JOIN everfold_generations g ON g.id = p.active_generation
  JOIN json_each(g.tables) t
 ORDER BY p.namespace, p.name, t.key
