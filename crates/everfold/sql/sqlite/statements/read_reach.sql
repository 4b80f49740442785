-- How far a projection is from a position: by its active generation, or the newest if none is.
--   ?1 namespace text, ?2 name text, ?3 position integer
-- At most one row: the lowest checkpoint (for an inline one that appends feed, the highest position of
-- the log; nothing, if readers do not see it), what is owed at or below the position, status, reason.
SELECT CASE WHEN g.lifecycle = 'inline' AND g.id IS p.active_generation AND g.status <> 'rebuilding'
            THEN coalesce((SELECT max(position) FROM everfold_events), 0)
            WHEN g.id IS NOT p.active_generation THEN 0
            ELSE coalesce((SELECT min(position) FROM everfold_checkpoints WHERE generation = g.id), 0)
       END,
       (SELECT count(*) FROM everfold_skips WHERE generation = g.id AND position <= ?3)
     + (SELECT count(*) FROM everfold_dead_letters WHERE generation = g.id AND position <= ?3),
       g.status, g.reason
  FROM everfold_projections p
  JOIN everfold_generations g
    ON g.projection = p.id
   AND (p.active_generation IS NULL OR g.id = p.active_generation)
   AND g.status <> 'retired'
 WHERE p.namespace = ?1 AND p.name = ?2
 ORDER BY g.id DESC
 LIMIT 1
