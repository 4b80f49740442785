-- Records a migration, in its own transaction.
--   ?1 revision integer, ?2 name text
-- Locks: the write lock.
INSERT INTO everfold_migrations (revision, name) VALUES (?1, ?2)
