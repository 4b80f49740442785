-- Adds a generation, whose tables are named after its id later in the same transaction.
--   ?1 projection integer, ?2 version integer, ?3 kind text, ?4 lifecycle text,
--   ?5 event_types json array or NULL, ?6 key_fields json array or NULL, ?7 shards integer,
--   ?8 on_error text, ?9 definition_hash text, ?10 definition json, ?11 status text,
--   ?12 reason text or NULL
-- One row: its id.
-- Locks: the caller holds the write lock.
INSERT INTO everfold_generations
    (projection, version, kind, lifecycle, event_types, key_fields, shards, on_error,
     definition_hash, definition, status, reason, home, tables)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, '', '[]')
RETURNING id
