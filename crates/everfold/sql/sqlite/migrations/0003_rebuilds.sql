-- Revision 3: rebuilds and their progress, snapshots of read models, verifications. See the same
-- migration of PostgreSQL for what each is for.
--
-- Locks: the one write lock of the file, for as long as it takes to create these tables.
-- Lists are JSON arrays. Times are milliseconds since 1970 where they are compared.

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
CREATE UNIQUE INDEX everfold_rebuilds_open_key ON everfold_rebuilds (projection) WHERE finished_at IS NULL;

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
CREATE INDEX everfold_verifications_projection_idx ON everfold_verifications (projection, id);
