-- What depends on the views that readers have of a projection, in words: views of others.
-- $1 projection integer. Takes no locks.
SELECT DISTINCT pg_describe_object('pg_catalog.pg_class'::regclass, r.ev_class, 0)
  FROM everfold.generations g
  JOIN everfold.projections p ON p.id = g.projection
 CROSS JOIN unnest(g.tables) AS t(name)
  JOIN pg_catalog.pg_namespace n
    ON n.nspname = CASE p.namespace WHEN '' THEN 'read_model' ELSE 'read_model_' || p.namespace END
  JOIN pg_catalog.pg_class v ON v.relnamespace = n.oid AND v.relkind = 'v'
   AND v.relname IN (t.name, t.name || '_v' || g.version)
  JOIN pg_catalog.pg_depend d ON d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = v.oid
   AND d.classid = 'pg_catalog.pg_rewrite'::regclass
  JOIN pg_catalog.pg_rewrite r ON r.oid = d.objid AND r.ev_class <> v.oid
 WHERE g.projection = $1 AND g.status <> 'retired'
 ORDER BY 1
