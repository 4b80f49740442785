-- Columns of the tables in two schemas, for a comparison of them.
-- $1 text: the first schema. $2 text: the second.
-- Rows: table, column, type in the first (NULL if it has none), type in the second, whether to compare
-- it as text (types without equality, and types made in these schemas), whether its value is drawn from
-- a sequence, place in the primary key of the first and of the second (NULL: not in it), by table and
-- place of the column. Takes no locks.
WITH columns AS (
    SELECT n.nspname AS home, c.relname, a.attname, a.attnum,
           CASE WHEN tn.nspname IN ($1, $2) THEN t.typname::text
                ELSE format_type(a.atttypid, a.atttypmod) END AS type,
           tn.nspname IN ($1, $2) OR t.typname = ANY ('{json,xml,point,lseg,path,box,polygon,line,circle,
               _json,_xml,_point,_lseg,_path,_box,_polygon,_line,_circle}') AS as_text,
           a.attidentity <> '' OR coalesce(pg_get_expr(d.adbin, d.adrelid), '') ~ '^nextval\(' AS drawn,
           array_position(i.indkey::smallint[], a.attnum) AS key_place
      FROM pg_namespace n
      JOIN pg_class c ON c.relnamespace = n.oid AND c.relkind IN ('r', 'p') AND NOT c.relispartition
      JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      JOIN pg_type t ON t.oid = a.atttypid
      JOIN pg_namespace tn ON tn.oid = t.typnamespace
      LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
      LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
     WHERE n.nspname IN ($1, $2))
SELECT coalesce(a.relname, b.relname)::text, coalesce(a.attname, b.attname)::text, a.type, b.type,
       coalesce(a.as_text, false) OR coalesce(b.as_text, false),
       coalesce(a.drawn, false) OR coalesce(b.drawn, false), a.key_place, b.key_place
  FROM (SELECT * FROM columns WHERE home = $1) a
  FULL JOIN (SELECT * FROM columns WHERE home = $2) b ON b.relname = a.relname AND b.attname = a.attname
 ORDER BY 1, coalesce(a.attnum, b.attnum)
