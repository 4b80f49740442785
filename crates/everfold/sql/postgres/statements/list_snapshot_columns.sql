-- Columns of the tables in a schema, for a copy of them.
-- $1 text: the schema. Rows: table, column, its type if that is made in the schema itself (else NULL),
-- whether it is computed from others, the sequence its values are drawn from (NULL: none), by table and
-- place. Takes no locks.
SELECT c.relname::text, a.attname::text,
       CASE WHEN tn.nspname = $1 THEN format_type(a.atttypid, a.atttypmod) END,
       a.attgenerated <> '',
       pg_get_serial_sequence(quote_ident(n.nspname) || '.' || quote_ident(c.relname), a.attname)
  FROM pg_namespace n
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relkind IN ('r', 'p') AND NOT c.relispartition
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  JOIN pg_type t ON t.oid = a.atttypid
  JOIN pg_namespace tn ON tn.oid = t.typnamespace
 WHERE n.nspname = $1
 ORDER BY 1, a.attnum
