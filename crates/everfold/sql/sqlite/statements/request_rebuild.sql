-- Asks for a rebuild of a projection, away from what readers see now.
--   ?1 projection integer, ?2 kind text, ?3 version integer, ?4 definition_hash text,
--   ?5 target integer or NULL, ?6 options json, ?7 requested_by text
-- One row: its id.
-- Locks: the caller holds the write lock, and has looked that none is open.
INSERT INTO everfold_rebuilds
    (projection, kind, version, definition_hash, target, source, options, requested_by)
SELECT p.id, ?2, ?3, ?4, ?5, p.active_generation, ?6, ?7
  FROM everfold_projections p
 WHERE p.id = ?1
RETURNING id
