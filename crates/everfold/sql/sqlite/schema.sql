-- Dump of a fresh install, made and compared by a test of src/store/sqlite/schema.rs.
-- Change a migration, not this file.

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
