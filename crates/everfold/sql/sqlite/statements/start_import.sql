-- Makes the row of an import, unless it is there.
--   ?1 name text
-- Locks: the write lock.
INSERT INTO everfold_imports (name, lines, bytes, last_line_hash)
VALUES (?1, 0, 0, '')
ON CONFLICT (name) DO NOTHING
