-- How far an import has come.
--   ?1 name text
-- At most one row: lines, bytes, last_line_hash.
SELECT lines, bytes, last_line_hash FROM everfold_imports WHERE name = ?1
