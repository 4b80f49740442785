-- What the tables of a projection's generations look like, as far as they are there: one row a table,
-- with its columns in their order (NULL: it has none), and whether it was retired without ever having
-- been shown: whatever was, a rebuild has replaced.
-- $1 projection integer. With a search_path of pg_catalog alone, so that types say their schema. Takes
-- no locks.
SELECT g.id, g.version, g.status, g.home, c.relname::text,
       array_agg(a.attname::text ORDER BY a.attnum) FILTER (WHERE a.attnum > 0),
       array_agg(format_type(a.atttypid, a.atttypmod)
           || CASE WHEN a.attcollation <> 0 AND a.attcollation <> t.typcollation
                   THEN (SELECT format(' COLLATE %I.%I', m.nspname, l.collname)
                           FROM pg_catalog.pg_collation l
                           JOIN pg_catalog.pg_namespace m ON m.oid = l.collnamespace
                          WHERE l.oid = a.attcollation)
                   ELSE '' END
           ORDER BY a.attnum) FILTER (WHERE a.attnum > 0),
       g.status = 'retired' AND NOT EXISTS (SELECT FROM everfold.rebuilds r WHERE r.source = g.id)
  FROM everfold.generations g
  JOIN pg_catalog.pg_namespace n ON n.nspname = g.home
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid
       AND c.relkind IN ('r', 'p', 'v', 'm') AND NOT c.relispartition
  LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
 WHERE g.projection = $1
 GROUP BY g.id, c.oid, c.relname
 ORDER BY g.id, c.relname
