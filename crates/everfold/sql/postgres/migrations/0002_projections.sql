-- Revision 2: projections, their generations and checkpoints, skips, dead letters, the record of what
-- was done, and the schema that readers use.
--
-- Locks: creates new objects only, so it waits for nobody and nobody waits for it.

-- Readers find the read models here: one view for each table of a projection's active generation.
CREATE SCHEMA IF NOT EXISTS read_model;

-- What exists. `active_generation` is the one value that a flip changes.
CREATE TABLE everfold.projections (
    id integer GENERATED ALWAYS AS IDENTITY,
    namespace text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    active_generation integer,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT projections_pkey PRIMARY KEY (id),
    CONSTRAINT projections_name_key UNIQUE (namespace, name),
    CONSTRAINT projections_namespace_form CHECK (namespace ~ '^([a-z][a-z0-9_]{0,15})?$'),
    CONSTRAINT projections_name_form CHECK (name ~ '^[a-z][a-z0-9_]{0,39}$')
);

-- One physical build of a read model. Cold: appends read these rows, only transitions write them.
-- The OID of this table is the name space of the gates: (OID, id).
CREATE TABLE everfold.generations (
    id integer GENERATED ALWAYS AS IDENTITY,
    projection integer NOT NULL,
    version integer NOT NULL,
    kind text NOT NULL,
    lifecycle text NOT NULL,
    -- NULL: all types.
    event_types text[] COLLATE "C",
    -- NULL: the stream. Otherwise fields of the event, such as data.tenant.
    key_fields text[],
    shards integer NOT NULL,
    on_error text NOT NULL,
    -- Hash of everything that decides what the read model holds.
    definition_hash text NOT NULL,
    -- The definition itself, and the settings that may change without a new version.
    definition jsonb NOT NULL,
    -- The schema that holds its tables and its functions.
    home text COLLATE "C" NOT NULL,
    tables text[] COLLATE "C" NOT NULL,
    status text NOT NULL,
    reason text,
    status_since timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT generations_pkey PRIMARY KEY (id),
    CONSTRAINT generations_projection_fkey FOREIGN KEY (projection) REFERENCES everfold.projections (id),
    CONSTRAINT generations_version_positive CHECK (version > 0),
    CONSTRAINT generations_kind_known CHECK (kind IN ('sql', 'document', 'handler')),
    CONSTRAINT generations_lifecycle_known CHECK (lifecycle IN ('inline', 'catch-up')),
    CONSTRAINT generations_shards_range CHECK (shards BETWEEN 1 AND 1024),
    CONSTRAINT generations_on_error_known CHECK (on_error IN ('stop', 'dead-letter', 'skip')),
    CONSTRAINT generations_status_known CHECK (status IN
        ('building', 'active', 'rebuilding', 'kept', 'paused', 'failed', 'retired', 'spare'))
);
ALTER TABLE everfold.projections ADD CONSTRAINT projections_active_generation_fkey
    FOREIGN KEY (active_generation) REFERENCES everfold.generations (id);

-- How far each shard of a generation has come, and who runs it. Hot: fillfactor, and no index on what
-- moves.
CREATE TABLE everfold.checkpoints (
    generation integer NOT NULL,
    shard integer NOT NULL,
    position bigint NOT NULL DEFAULT 0,
    -- Raised by whoever takes the lease; a holder of an earlier one can move nothing.
    epoch bigint NOT NULL DEFAULT 0,
    owner uuid,
    expires_at timestamptz,
    moved_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Failed tries in a row of what stands behind `position`, and the last failure.
    attempts integer NOT NULL DEFAULT 0,
    failure text,
    CONSTRAINT checkpoints_pkey PRIMARY KEY (generation, shard),
    CONSTRAINT checkpoints_generation_fkey FOREIGN KEY (generation) REFERENCES everfold.generations (id)
) WITH (fillfactor = 50);

-- Live runner processes. A row that has expired is a process that died.
CREATE TABLE everfold.workers (
    id uuid NOT NULL,
    name text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    -- The generations that it can run.
    carries integer[] NOT NULL,
    CONSTRAINT workers_pkey PRIMARY KEY (id)
) WITH (fillfactor = 50);

-- Inline applications that are owed: written in the append's transaction, deleted by whoever applies
-- them. Settled ones go to system_messages.
CREATE TABLE everfold.skips (
    generation integer NOT NULL,
    position bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    reason text NOT NULL,
    skipped_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT skips_pkey PRIMARY KEY (generation, position)
);
CREATE INDEX skips_key_idx ON everfold.skips (generation, key, position);

-- Events that could not be applied, and the later events of their keys that wait behind them.
CREATE TABLE everfold.dead_letters (
    generation integer NOT NULL,
    position bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    -- NULL: this event failed. Otherwise it waits behind the one at that position.
    behind bigint,
    error text,
    attempts integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    tried_at timestamptz,
    -- An operator asks the runner that carries the projection to try it again.
    retry_wanted boolean NOT NULL DEFAULT false,
    CONSTRAINT dead_letters_pkey PRIMARY KEY (generation, position),
    CONSTRAINT dead_letters_failed_or_held CHECK ((behind IS NULL) = (error IS NOT NULL))
);
CREATE INDEX dead_letters_key_idx ON everfold.dead_letters (generation, key, position);

-- What happened to projections: settled skips, failures, dead letters and their end, operators'
-- actions, registrations. Kept for a time (retention).
CREATE TABLE everfold.system_messages (
    id bigint GENERATED ALWAYS AS IDENTITY,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    generation integer,
    kind text NOT NULL,
    position bigint,
    key text COLLATE "C",
    actor text NOT NULL,
    message text NOT NULL,
    CONSTRAINT system_messages_pkey PRIMARY KEY (id)
);
CREATE INDEX system_messages_generation_idx ON everfold.system_messages (generation, id);

-- One row a batch of a catch-up projection. Kept for a time (retention).
CREATE TABLE everfold.run_log (
    id bigint GENERATED ALWAYS AS IDENTITY,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    generation integer NOT NULL,
    shard integer NOT NULL,
    from_position bigint NOT NULL,
    to_position bigint NOT NULL,
    events integer NOT NULL,
    duration_ms real NOT NULL,
    owner uuid,
    CONSTRAINT run_log_pkey PRIMARY KEY (id)
);
CREATE INDEX run_log_generation_idx ON everfold.run_log (generation, id);
