-- The views in the readers' schema that show tables of a projection's generations: which table of which
-- generations, their columns, and for which active generations each part of them is shown (none: it is
-- always shown). One row a view and table.
-- $1 projection integer, $2 schema text. With a search_path of pg_catalog alone. Takes no locks.
SELECT v.relname::text, c.relname::text, array_agg(DISTINCT g.id ORDER BY g.id),
       (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_catalog.pg_attribute a
         WHERE a.attrelid = v.oid AND a.attnum > 0 AND NOT a.attisdropped),
       (SELECT array_agg(format_type(a.atttypid, a.atttypmod)
                   || CASE WHEN a.attcollation <> 0 AND a.attcollation <> t.typcollation
                           THEN (SELECT format(' COLLATE %I.%I', m.nspname, l.collname)
                                   FROM pg_catalog.pg_collation l
                                   JOIN pg_catalog.pg_namespace m ON m.oid = l.collnamespace
                                  WHERE l.oid = a.attcollation)
                           ELSE '' END
                   ORDER BY a.attnum)
          FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
         WHERE a.attrelid = v.oid AND a.attnum > 0 AND NOT a.attisdropped),
       ARRAY(SELECT m[1] FROM regexp_matches(pg_get_viewdef(v.oid), 'ANY \(ARRAY\[([0-9, ]+)\]\)', 'g') AS m)
  FROM pg_catalog.pg_class v
  JOIN pg_catalog.pg_namespace s ON s.oid = v.relnamespace AND s.nspname = $2
  JOIN pg_catalog.pg_rewrite r ON r.ev_class = v.oid
  JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_rewrite'::regclass AND d.objid = r.oid
       AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.deptype = 'n'
  JOIN pg_catalog.pg_class c ON c.oid = d.refobjid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  JOIN everfold.generations g ON g.home = n.nspname AND g.projection = $1
 WHERE v.relkind = 'v'
 GROUP BY v.oid, v.relname, c.relname
 ORDER BY v.relname
