-- Revision 3: rebuilds and their progress, snapshots of read models, verifications.
--
-- Locks: creates new objects, and adds a column to everfold.generations, for which appends wait a moment.

-- Whether indexes and constraints of its tables are still to be made: they come after history was copied.
ALTER TABLE everfold.generations ADD COLUMN indexes_deferred boolean NOT NULL DEFAULT false;

-- One rebuild, or another switch of what readers see. Cold but for its progress; appends never read it.
CREATE TABLE everfold.rebuilds (
    id integer GENERATED ALWAYS AS IDENTITY,
    projection integer NOT NULL,
    kind text NOT NULL,
    -- What is built or switched to.
    version integer NOT NULL,
    definition_hash text NOT NULL,
    -- The generation that is built or switched to; NULL until it is made.
    target integer,
    -- The generation that readers saw when it began; NULL if there was none.
    source integer,
    phase text NOT NULL DEFAULT 'requested',
    options jsonb NOT NULL,
    -- History up to here is copied; what comes after it is caught up with.
    cutoff bigint NOT NULL DEFAULT 0,
    events_done bigint NOT NULL DEFAULT 0,
    events_total bigint NOT NULL DEFAULT 0,
    -- What it waits for, or why it ended as it did.
    message text,
    -- What comparing it has found, and how long the switch held appends up.
    report jsonb NOT NULL DEFAULT '{}',
    -- What an operator wants of it.
    wanted text NOT NULL DEFAULT 'run',
    -- Who works on it: a lease as those of shards. Raised by whoever takes it.
    epoch bigint NOT NULL DEFAULT 0,
    owner uuid,
    owner_name text,
    expires_at timestamptz,
    requested_by text NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    flipped_at timestamptz,
    finished_at timestamptz,
    CONSTRAINT rebuilds_pkey PRIMARY KEY (id),
    CONSTRAINT rebuilds_projection_fkey FOREIGN KEY (projection) REFERENCES everfold.projections (id),
    CONSTRAINT rebuilds_kind_known CHECK (kind IN ('beside', 'in-place', 'switch', 'replay', 'as-of')),
    CONSTRAINT rebuilds_phase_known CHECK (phase IN
        ('requested', 'copying', 'indexing', 'catching-up', 'comparing', 'switching', 'draining',
         'done', 'built', 'cancelled', 'failed')),
    CONSTRAINT rebuilds_wanted_known CHECK (wanted IN ('run', 'pause', 'cancel'))
) WITH (fillfactor = 50);
-- One at a time for each projection.
CREATE UNIQUE INDEX rebuilds_open_key ON everfold.rebuilds (projection) WHERE finished_at IS NULL;

-- Parts of the history that are copied one by one: keys whose hash is in [low, high).
CREATE TABLE everfold.rebuild_parts (
    rebuild integer NOT NULL,
    low bigint NOT NULL,
    high bigint NOT NULL,
    done boolean NOT NULL DEFAULT false,
    events bigint NOT NULL DEFAULT 0,
    CONSTRAINT rebuild_parts_pkey PRIMARY KEY (rebuild, low),
    CONSTRAINT rebuild_parts_rebuild_fkey FOREIGN KEY (rebuild) REFERENCES everfold.rebuilds (id),
    CONSTRAINT rebuild_parts_range CHECK (low >= 0 AND low < high AND high <= 4294967296)
);

-- Copies of read models at a position: tables in a schema of their own.
CREATE TABLE everfold.read_model_snapshots (
    id integer GENERATED ALWAYS AS IDENTITY,
    projection integer NOT NULL,
    generation integer NOT NULL,
    version integer NOT NULL,
    definition_hash text NOT NULL,
    -- The schema that holds its tables.
    home text COLLATE "C" NOT NULL,
    tables text[] COLLATE "C" NOT NULL,
    -- The checkpoint of each shard.
    positions bigint[] NOT NULL,
    -- Dead letters with the events held behind them, and open skips, of that moment.
    dead_letters jsonb NOT NULL DEFAULT '[]',
    skips jsonb NOT NULL DEFAULT '[]',
    rows bigint NOT NULL DEFAULT 0,
    bytes bigint NOT NULL DEFAULT 0,
    taken_by text NOT NULL,
    taken_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT read_model_snapshots_pkey PRIMARY KEY (id),
    CONSTRAINT read_model_snapshots_projection_fkey FOREIGN KEY (projection) REFERENCES everfold.projections (id)
);

-- What was compared with the log, and what differed.
CREATE TABLE everfold.verifications (
    id bigint GENERATED ALWAYS AS IDENTITY,
    projection integer NOT NULL,
    generation integer NOT NULL,
    -- all, sample or keys
    scope text NOT NULL,
    "position" bigint NOT NULL,
    compared bigint NOT NULL,
    differences bigint NOT NULL,
    -- The first of them: table, key, expected, found.
    examples jsonb NOT NULL DEFAULT '[]',
    duration_ms bigint NOT NULL,
    verified_by text NOT NULL,
    verified_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT verifications_pkey PRIMARY KEY (id),
    CONSTRAINT verifications_projection_fkey FOREIGN KEY (projection) REFERENCES everfold.projections (id)
);
CREATE INDEX verifications_projection_idx ON everfold.verifications (projection, id);
