-- Revision 1: events, stream snapshots, imports, the published mark, and the roles.
--
-- Locks: creates new objects only, so it waits for nobody and nobody waits for it.
-- Roles are shared by all databases of a cluster. Without the right to create them this
-- migration goes on without, and `everfold doctor` says how to add them later.

CREATE TABLE everfold.events (
    -- CACHE 1 is load-bearing: the high-water mark reads the sequence's last value as
    -- "the highest position handed out" (docs/design.md, High-water mark).
    position bigint GENERATED ALWAYS AS IDENTITY
        (SEQUENCE NAME everfold.events_position_seq INCREMENT 1 CACHE 1 NO CYCLE),
    version bigint NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    id uuid NOT NULL,
    schema_version integer NOT NULL,
    stream_id text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    data jsonb NOT NULL,
    metadata jsonb NOT NULL,
    CONSTRAINT events_pkey PRIMARY KEY (position),
    CONSTRAINT events_stream_version_key UNIQUE (stream_id, version),
    CONSTRAINT events_id_key UNIQUE (id),
    CONSTRAINT events_stream_id_length CHECK (octet_length(stream_id) BETWEEN 1 AND 512),
    CONSTRAINT events_type_length CHECK (octet_length(type) BETWEEN 1 AND 256),
    CONSTRAINT events_version_positive CHECK (version > 0),
    CONSTRAINT events_schema_version_positive CHECK (schema_version > 0),
    CONSTRAINT events_data_size CHECK (pg_column_size(data) <= 16777216),
    CONSTRAINT events_metadata_object
        CHECK (jsonb_typeof(metadata) = 'object' AND pg_column_size(metadata) <= 1048576)
);

-- Readers that want a few types of event find them here instead of scanning the log.
CREATE INDEX events_type_position_idx ON everfold.events (type, position);

CREATE FUNCTION everfold.refuse_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, everfold, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'events are append only: % of %.% is refused',
        lower(TG_OP), TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'EF005', HINT = 'append an event that corrects the earlier one';
END $$;

CREATE TRIGGER events_refuse_change BEFORE UPDATE OR DELETE ON everfold.events
    FOR EACH STATEMENT EXECUTE FUNCTION everfold.refuse_change();
CREATE TRIGGER events_refuse_truncate BEFORE TRUNCATE ON everfold.events
    FOR EACH STATEMENT EXECUTE FUNCTION everfold.refuse_change();
ALTER TABLE everfold.events ENABLE ALWAYS TRIGGER events_refuse_change;
ALTER TABLE everfold.events ENABLE ALWAYS TRIGGER events_refuse_truncate;

-- Folded state of one stream, so that a decider need not read it from the start. Only a
-- shortcut: a row may be deleted at any time, and one of another state_version is ignored.
CREATE TABLE everfold.stream_snapshots (
    stream_id text COLLATE "C" NOT NULL,
    name text NOT NULL,
    version bigint NOT NULL,
    state_version integer NOT NULL,
    state jsonb NOT NULL,
    taken_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT stream_snapshots_pkey PRIMARY KEY (stream_id, name),
    CONSTRAINT stream_snapshots_versions_positive CHECK (version > 0 AND state_version > 0)
) WITH (fillfactor = 70);

-- How far each import has come; moved in the transaction that stores the events.
CREATE TABLE everfold.imports (
    name text NOT NULL,
    lines bigint NOT NULL,
    bytes bigint NOT NULL,
    last_line_hash text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT imports_pkey PRIMARY KEY (name)
) WITH (fillfactor = 50);

-- The high-water mark for standbys, which cannot see the primary's locks.
CREATE TABLE everfold.published_mark (
    singleton boolean NOT NULL DEFAULT true,
    position bigint NOT NULL,
    published_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT published_mark_pkey PRIMARY KEY (singleton),
    CONSTRAINT published_mark_one_row CHECK (singleton)
) WITH (fillfactor = 50);

DO $$
DECLARE
    role_name text;
BEGIN
    FOREACH role_name IN ARRAY ARRAY[
        'everfold_writer', 'everfold_events_reader', 'everfold_read_models', 'everfold_admin']
    LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = role_name) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', role_name);
            EXCEPTION
                -- Another database of the cluster was first.
                WHEN duplicate_object OR unique_violation THEN NULL;
                WHEN insufficient_privilege THEN
                    RAISE WARNING 'role % is missing and may not be created by %',
                        role_name, current_user;
            END;
        END IF;
    END LOOP;
END $$;
