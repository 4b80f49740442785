-- The tables that readers see, by projection: its name, the table, whether it is there, whether a view
-- in the readers' schema shows it, and whether a unique index keeps a row from being there twice.
-- Takes no locks.
SELECT p.name, t.name, c.oid IS NOT NULL,
       EXISTS (SELECT FROM pg_depend d
                 JOIN pg_rewrite r ON r.oid = d.objid
                 JOIN pg_class v ON v.oid = r.ev_class AND v.relkind = 'v'
                 JOIN pg_namespace s ON s.oid = v.relnamespace
                WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass
                  AND d.refobjid = c.oid
                  AND s.nspname = concat_ws('_', 'read_model', nullif(p.namespace, ''))),
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid)
  FROM everfold.projections p
  JOIN everfold.generations g ON g.id = p.active_generation
 CROSS JOIN LATERAL unnest(g.tables) WITH ORDINALITY AS t(name, number)
  LEFT JOIN pg_namespace n ON n.nspname = g.home
  LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.name
 ORDER BY p.namespace, p.name, t.number
