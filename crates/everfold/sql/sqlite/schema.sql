-- Dump of a fresh install, made and compared by a test of src/store/sqlite/schema.rs.
-- Change a migration, not this file.

-- table everfold_checkpoints
CREATE TABLE everfold_checkpoints (
    generation INTEGER NOT NULL,
    shard INTEGER NOT NULL,
    position INTEGER NOT NULL DEFAULT 0,
    epoch INTEGER NOT NULL DEFAULT 0,
    owner TEXT,
    expires_at INTEGER,
    moved_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    attempts INTEGER NOT NULL DEFAULT 0,
    failure TEXT,
    CONSTRAINT checkpoints_pkey PRIMARY KEY (generation, shard)
) STRICT, WITHOUT ROWID;

-- table everfold_dead_letters
CREATE TABLE everfold_dead_letters (
    generation INTEGER NOT NULL,
    position INTEGER NOT NULL,
    key TEXT NOT NULL,
    behind INTEGER,
    error TEXT,
    attempts INTEGER NOT NULL DEFAULT 0,
    created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    tried_at TEXT,
    retry_wanted INTEGER NOT NULL DEFAULT 0,
    CONSTRAINT dead_letters_pkey PRIMARY KEY (generation, position),
    CONSTRAINT dead_letters_failed_or_held CHECK ((behind IS NULL) = (error IS NOT NULL))
) STRICT, WITHOUT ROWID;

-- index everfold_dead_letters_key_idx
CREATE INDEX everfold_dead_letters_key_idx ON everfold_dead_letters (generation, key, position);

-- table everfold_events
CREATE TABLE everfold_events (
    position INTEGER NOT NULL,
    stream_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    type TEXT NOT NULL,
    schema_version INTEGER NOT NULL,
    data TEXT NOT NULL,
    metadata TEXT NOT NULL,
    id TEXT NOT NULL,
    recorded_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    CONSTRAINT events_pkey PRIMARY KEY (position AUTOINCREMENT),
    CONSTRAINT events_stream_version_key UNIQUE (stream_id, version),
    CONSTRAINT events_id_key UNIQUE (id),
    CONSTRAINT events_position_positive CHECK (position > 0),
    CONSTRAINT events_stream_id_length CHECK (length(CAST(stream_id AS BLOB)) BETWEEN 1 AND 512),
    CONSTRAINT events_type_length CHECK (length(CAST(type AS BLOB)) BETWEEN 1 AND 256),
    CONSTRAINT events_version_positive CHECK (version > 0),
    CONSTRAINT events_schema_version_positive CHECK (schema_version BETWEEN 1 AND 2147483647),
    CONSTRAINT events_data_size CHECK (length(CAST(data AS BLOB)) <= 16777216),
    CONSTRAINT events_data_json CHECK (json_valid(data)),
    CONSTRAINT events_metadata_size CHECK (length(CAST(metadata AS BLOB)) <= 1048576),
    CONSTRAINT events_metadata_object CHECK (json_valid(metadata) AND json_type(metadata) = 'object'),
    CONSTRAINT events_id_uuid CHECK (length(id) = 36 AND id NOT GLOB '*[^0-9a-f-]*'),
    CONSTRAINT events_recorded_at_utc CHECK (length(recorded_at) = 27 AND substr(recorded_at, 27) = 'Z')
) STRICT;

-- index everfold_events_type_position_idx
CREATE INDEX everfold_events_type_position_idx ON everfold_events (type, position);

-- trigger everfold_events_refuse_delete
CREATE TRIGGER everfold_events_refuse_delete BEFORE DELETE ON everfold_events
BEGIN
    SELECT RAISE(ABORT, 'events are append only: delete of everfold_events is refused; append an event that corrects the earlier one');
END;

-- trigger everfold_events_refuse_update
CREATE TRIGGER everfold_events_refuse_update BEFORE UPDATE ON everfold_events
BEGIN
    SELECT RAISE(ABORT, 'events are append only: update of everfold_events is refused; append an event that corrects the earlier one');
END;

-- table everfold_generations
CREATE TABLE everfold_generations (
    id INTEGER NOT NULL,
    projection INTEGER NOT NULL,
    version INTEGER NOT NULL,
    kind TEXT NOT NULL,
    lifecycle TEXT NOT NULL,
    event_types TEXT,
    key_fields TEXT,
    shards INTEGER NOT NULL,
    on_error TEXT NOT NULL,
    definition_hash TEXT NOT NULL,
    -- The prefix of its tables and indexes.
    home TEXT NOT NULL,
    tables TEXT NOT NULL,
    status TEXT NOT NULL,
    reason TEXT,
    status_since TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    -- Last, because it is long: what stands behind it is slower to read.
    definition TEXT NOT NULL,
    CONSTRAINT generations_pkey PRIMARY KEY (id AUTOINCREMENT),
    CONSTRAINT generations_version_positive CHECK (version > 0),
    CONSTRAINT generations_kind_known CHECK (kind IN ('sql', 'document', 'handler')),
    CONSTRAINT generations_lifecycle_known CHECK (lifecycle IN ('inline', 'catch-up')),
    CONSTRAINT generations_shards_range CHECK (shards BETWEEN 1 AND 1024),
    CONSTRAINT generations_on_error_known CHECK (on_error IN ('stop', 'dead-letter', 'skip')),
    CONSTRAINT generations_status_known CHECK (status IN
        ('building', 'active', 'rebuilding', 'kept', 'paused', 'failed', 'retired', 'spare'))
) STRICT;

-- index everfold_generations_inline_idx
CREATE INDEX everfold_generations_inline_idx
    ON everfold_generations (id, status, on_error, definition_hash, lifecycle)
    WHERE lifecycle = 'inline';

-- table everfold_imports
CREATE TABLE everfold_imports (
    name TEXT NOT NULL,
    lines INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    last_line_hash TEXT NOT NULL,
    updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    CONSTRAINT imports_pkey PRIMARY KEY (name)
) STRICT, WITHOUT ROWID;

-- table everfold_migrations
CREATE TABLE everfold_migrations (
    revision INTEGER NOT NULL,
    name TEXT NOT NULL,
    applied_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    CONSTRAINT migrations_pkey PRIMARY KEY (revision)
) STRICT;

-- table everfold_projections
CREATE TABLE everfold_projections (
    id INTEGER NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    active_generation INTEGER,
    created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    CONSTRAINT projections_pkey PRIMARY KEY (id AUTOINCREMENT),
    CONSTRAINT projections_name_key UNIQUE (namespace, name)
) STRICT;

-- table everfold_read_model_snapshots
CREATE TABLE everfold_read_model_snapshots (
    id INTEGER NOT NULL,
    projection INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    version INTEGER NOT NULL,
    definition_hash TEXT NOT NULL,
    -- The prefix of its tables.
    home TEXT NOT NULL,
    tables TEXT NOT NULL,
    positions TEXT NOT NULL,
    dead_letters TEXT NOT NULL DEFAULT '[]',
    skips TEXT NOT NULL DEFAULT '[]',
    rows INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0,
    taken_by TEXT NOT NULL,
    taken_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    CONSTRAINT read_model_snapshots_pkey PRIMARY KEY (id AUTOINCREMENT)
) STRICT;

-- table everfold_rebuilds
CREATE TABLE everfold_rebuilds (
    id INTEGER NOT NULL,
    projection INTEGER NOT NULL,
    kind TEXT NOT NULL,
    version INTEGER NOT NULL,
    definition_hash TEXT NOT NULL,
    target INTEGER,
    source INTEGER,
    phase TEXT NOT NULL DEFAULT 'requested',
    options TEXT NOT NULL,
    cutoff INTEGER NOT NULL DEFAULT 0,
    events_done INTEGER NOT NULL DEFAULT 0,
    events_total INTEGER NOT NULL DEFAULT 0,
    message TEXT,
    report TEXT NOT NULL DEFAULT '{}',
    wanted TEXT NOT NULL DEFAULT 'run',
    epoch INTEGER NOT NULL DEFAULT 0,
    owner TEXT,
    owner_name TEXT,
    expires_at INTEGER,
    requested_by TEXT NOT NULL,
    requested_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    flipped_at TEXT,
    finished_at TEXT,
    CONSTRAINT rebuilds_pkey PRIMARY KEY (id AUTOINCREMENT),
    CONSTRAINT rebuilds_kind_known CHECK (kind IN ('beside', 'in-place', 'switch', 'replay', 'as-of')),
    CONSTRAINT rebuilds_phase_known CHECK (phase IN
        ('requested', 'copying', 'indexing', 'catching-up', 'comparing', 'switching', 'draining',
         'done', 'built', 'cancelled', 'failed')),
    CONSTRAINT rebuilds_wanted_known CHECK (wanted IN ('run', 'pause', 'cancel'))
) STRICT;

-- index everfold_rebuilds_open_key
CREATE UNIQUE INDEX everfold_rebuilds_open_key ON everfold_rebuilds (projection) WHERE finished_at IS NULL;

-- table everfold_run_log
CREATE TABLE everfold_run_log (
    id INTEGER NOT NULL,
    recorded_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    generation INTEGER NOT NULL,
    shard INTEGER NOT NULL,
    from_position INTEGER NOT NULL,
    to_position INTEGER NOT NULL,
    events INTEGER NOT NULL,
    duration_ms REAL NOT NULL,
    owner TEXT,
    CONSTRAINT run_log_pkey PRIMARY KEY (id AUTOINCREMENT)
) STRICT;

-- index everfold_run_log_generation_idx
CREATE INDEX everfold_run_log_generation_idx ON everfold_run_log (generation, recorded_at);

-- table everfold_skips
CREATE TABLE everfold_skips (
    generation INTEGER NOT NULL,
    position INTEGER NOT NULL,
    key TEXT NOT NULL,
    reason TEXT NOT NULL,
    skipped_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    CONSTRAINT skips_pkey PRIMARY KEY (generation, position)
) STRICT, WITHOUT ROWID;

-- index everfold_skips_key_idx
CREATE INDEX everfold_skips_key_idx ON everfold_skips (generation, key, position);

-- table everfold_store
CREATE TABLE everfold_store (
    singleton INTEGER NOT NULL DEFAULT 1,
    id TEXT NOT NULL,
    created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    CONSTRAINT store_pkey PRIMARY KEY (singleton),
    CONSTRAINT store_one_row CHECK (singleton = 1)
) STRICT;

-- table everfold_stream_snapshots
CREATE TABLE everfold_stream_snapshots (
    stream_id TEXT NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    state_version INTEGER NOT NULL,
    state TEXT NOT NULL,
    taken_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    CONSTRAINT stream_snapshots_pkey PRIMARY KEY (stream_id, name),
    CONSTRAINT stream_snapshots_state_json CHECK (json_valid(state))
) STRICT, WITHOUT ROWID;

-- table everfold_system_messages
CREATE TABLE everfold_system_messages (
    id INTEGER NOT NULL,
    recorded_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    generation INTEGER,
    kind TEXT NOT NULL,
    position INTEGER,
    key TEXT,
    actor TEXT NOT NULL,
    message TEXT NOT NULL,
    CONSTRAINT system_messages_pkey PRIMARY KEY (id AUTOINCREMENT)
) STRICT;

-- index everfold_system_messages_generation_idx
CREATE INDEX everfold_system_messages_generation_idx ON everfold_system_messages (generation, id);

-- table everfold_verifications
CREATE TABLE everfold_verifications (
    id INTEGER NOT NULL,
    projection INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    scope TEXT NOT NULL,
    position INTEGER NOT NULL,
    compared INTEGER NOT NULL,
    differences INTEGER NOT NULL,
    examples TEXT NOT NULL DEFAULT '[]',
    duration_ms INTEGER NOT NULL,
    verified_by TEXT NOT NULL,
    verified_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    CONSTRAINT verifications_pkey PRIMARY KEY (id AUTOINCREMENT)
) STRICT;

-- index everfold_verifications_projection_idx
CREATE INDEX everfold_verifications_projection_idx ON everfold_verifications (projection, id);

-- table everfold_workers
CREATE TABLE everfold_workers (
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    started_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    expires_at INTEGER NOT NULL,
    carries TEXT NOT NULL,
    CONSTRAINT workers_pkey PRIMARY KEY (id)
) STRICT, WITHOUT ROWID;
