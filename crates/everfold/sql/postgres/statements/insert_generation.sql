-- A new generation, which is nothing yet: its home and status come when it is made.
-- $1 projection integer, $2 version integer, $3 kind text, $4 lifecycle text, $5 event_types text[],
-- $6 key_fields text[], $7 shards integer, $8 on_error text, $9 definition_hash text,
-- $10 definition jsonb. One row: its id.
INSERT INTO everfold.generations (projection, version, kind, lifecycle, event_types, key_fields, shards,
        on_error, definition_hash, definition, home, tables, status)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, '', '{}', 'building')
RETURNING id
