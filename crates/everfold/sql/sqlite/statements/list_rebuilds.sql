-- Rebuilds of all projections, the newest first.
--   ?1 id integer, NULL for all; ?2 whether only those that have not ended; ?3 most rows integer
-- Rows: what a rebuild is; whether its owner lives stands behind the owner's name.
SELECT r.id, p.namespace, p.name, r.kind, r.version, r.definition_hash, r.target, r.source, r.phase,
       r.options, r.cutoff, r.events_done, r.events_total, r.message, r.wanted, r.epoch, r.owner,
       r.owner_name,
       r.owner IS NOT NULL AND coalesce(r.expires_at, 0) > CAST(unixepoch('subsec') * 1000 AS INTEGER),
       r.requested_by, r.requested_at, r.flipped_at, r.finished_at, r.report
  FROM everfold_rebuilds r
  JOIN everfold_projections p ON p.id = r.projection
 WHERE (?1 IS NULL OR r.id = ?1) AND (NOT ?2 OR r.finished_at IS NULL)
 ORDER BY r.id DESC
 LIMIT ?3
