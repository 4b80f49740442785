-- Moves an import on, if it still stands where the caller thinks.
--   ?1 name text, ?2 from lines integer, ?3 to lines integer, ?4 to bytes integer,
--   ?5 last_line_hash text
-- Changes no row if another process has moved it.
-- Locks: the write lock.
UPDATE everfold_imports
   SET lines = ?3, bytes = ?4, last_line_hash = ?5,
       updated_at = strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'
 WHERE name = ?1 AND lines = ?2
