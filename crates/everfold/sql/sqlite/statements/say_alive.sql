-- Says that a worker lives, and what it can run.
--   ?1 worker text (uuid), ?2 name text, ?3 milliseconds to live integer, ?4 carries json array
-- Locks: the caller holds the write lock.
INSERT INTO everfold_workers (id, name, expires_at, carries)
VALUES (?1, ?2, CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?3, ?4)
ON CONFLICT (id) DO UPDATE
   SET name = excluded.name, expires_at = excluded.expires_at, carries = excluded.carries
