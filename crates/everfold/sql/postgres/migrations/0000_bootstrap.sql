-- Before the first migration: the schema, the record of migrations, and the store's own row, whose
-- table is also the name space of the registry gate. Runs every time; does nothing where it ran.
CREATE SCHEMA IF NOT EXISTS everfold;

CREATE TABLE IF NOT EXISTS everfold.migrations (
    revision integer NOT NULL,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT migrations_pkey PRIMARY KEY (revision)
);

CREATE TABLE IF NOT EXISTS everfold.store (
    singleton boolean NOT NULL DEFAULT true,
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    functions_revision integer NOT NULL DEFAULT 0,
    functions_hash text NOT NULL DEFAULT '',
    CONSTRAINT store_pkey PRIMARY KEY (singleton),
    CONSTRAINT store_one_row CHECK (singleton)
);
INSERT INTO everfold.store DEFAULT VALUES ON CONFLICT DO NOTHING;
