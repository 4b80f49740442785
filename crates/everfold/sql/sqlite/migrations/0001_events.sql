-- Revision 1: events, stream snapshots, imports, the store's identity and its migrations.
--
-- Locks: the one write lock of the file, for as long as it takes to create these tables.
-- Every name starts with everfold_, so that the store can live beside an application's own tables.

CREATE TABLE everfold_migrations (
    revision INTEGER NOT NULL,
    name TEXT NOT NULL,
    applied_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    CONSTRAINT migrations_pkey PRIMARY KEY (revision)
) STRICT;

-- One row: which store this is.
CREATE TABLE everfold_store (
    singleton INTEGER NOT NULL DEFAULT 1,
    id TEXT NOT NULL,
    created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    CONSTRAINT store_pkey PRIMARY KEY (singleton),
    CONSTRAINT store_one_row CHECK (singleton = 1)
) STRICT;

-- A random (version 4) UUID, written by SQLite's own means.
INSERT INTO everfold_store (id)
SELECT substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-4' || substr(h, 14, 3) || '-'
    || substr('89ab', 1 + (abs(random()) % 4), 1) || substr(h, 18, 3) || '-' || substr(h, 21, 12)
  FROM (SELECT lower(hex(randomblob(16))) AS h);

-- AUTOINCREMENT: a position that anybody can have seen is never used again, also when events were
-- removed by force. Lengths are in bytes, written so that SQLite before 3.43 takes them too.
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

-- Readers that want a few types of event find them here instead of scanning the log.
CREATE INDEX everfold_events_type_position_idx ON everfold_events (type, position);

CREATE TRIGGER everfold_events_refuse_update BEFORE UPDATE ON everfold_events
BEGIN
    SELECT RAISE(ABORT, 'events are append only: update of everfold_events is refused; append an event that corrects the earlier one');
END;

CREATE TRIGGER everfold_events_refuse_delete BEFORE DELETE ON everfold_events
BEGIN
    SELECT RAISE(ABORT, 'events are append only: delete of everfold_events is refused; append an event that corrects the earlier one');
END;

-- Folded state of one stream, so that a decider need not read it from the start. Only a
-- shortcut: a row may be deleted at any time, and one of another state_version is ignored.
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

-- How far each import has come; moved in the transaction that stores the events.
CREATE TABLE everfold_imports (
    name TEXT NOT NULL,
    lines INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    last_line_hash TEXT NOT NULL,
    updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    CONSTRAINT imports_pkey PRIMARY KEY (name)
) STRICT, WITHOUT ROWID;
