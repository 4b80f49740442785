-- The revision of the schema.
-- One row: revision integer, NULL if no migration is recorded.
SELECT max(revision) FROM everfold_migrations
