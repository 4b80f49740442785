-- Revision 2: projections, their generations and checkpoints, skips, dead letters, and the record of
-- what was done. See the same migration of PostgreSQL for what each is for.
--
-- Locks: the one write lock of the file, for as long as it takes to create these tables.
-- Lists are JSON arrays. Times are milliseconds since 1970 where they are compared.

CREATE TABLE everfold_projections (
    id INTEGER NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    active_generation INTEGER,
    created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    CONSTRAINT projections_pkey PRIMARY KEY (id AUTOINCREMENT),
    CONSTRAINT projections_name_key UNIQUE (namespace, name)
) STRICT;

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

-- Every append asks which inline generations there are; the rows themselves are large.
CREATE INDEX everfold_generations_inline_idx
    ON everfold_generations (id, status, on_error, definition_hash, lifecycle)
    WHERE lifecycle = 'inline';

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

CREATE TABLE everfold_workers (
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    started_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    expires_at INTEGER NOT NULL,
    carries TEXT NOT NULL,
    CONSTRAINT workers_pkey PRIMARY KEY (id)
) STRICT, WITHOUT ROWID;

CREATE TABLE everfold_skips (
    generation INTEGER NOT NULL,
    position INTEGER NOT NULL,
    key TEXT NOT NULL,
    reason TEXT NOT NULL,
    skipped_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    CONSTRAINT skips_pkey PRIMARY KEY (generation, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX everfold_skips_key_idx ON everfold_skips (generation, key, position);

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
CREATE INDEX everfold_dead_letters_key_idx ON everfold_dead_letters (generation, key, position);

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
CREATE INDEX everfold_system_messages_generation_idx ON everfold_system_messages (generation, id);

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
CREATE INDEX everfold_run_log_generation_idx ON everfold_run_log (generation, recorded_at);
