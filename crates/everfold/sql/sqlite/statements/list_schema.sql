-- What is in the file under our names, and what hangs on it (somebody else's trigger on events).
-- Indexes that SQLite makes by itself for constraints have no SQL and are left out.
-- Rows: type, name, sql; in a fixed order.
SELECT type, name, sql
  FROM sqlite_schema
 WHERE sql IS NOT NULL AND (name GLOB 'everfold_*' OR tbl_name GLOB 'everfold_*')
 ORDER BY tbl_name, type = 'table' DESC, type, name
