-- The last position whose skip a generation owes. One that is fed behind the appends (it is built, kept,
-- or stopped and not what readers see) owes those up to its checkpoint: what is above it comes with the
-- events themselves. One that appends feed owes them all.
--   ?1 generation integer
-- One row, or none if there is no such generation.
SELECT CASE WHEN g.status = 'active'
              OR (g.status IN ('paused', 'failed') AND g.id IS p.active_generation)
            THEN 9223372036854775807
            ELSE (SELECT coalesce(min(c.position), 0) FROM everfold_checkpoints c
                   WHERE c.generation = g.id)
       END
  FROM everfold_generations g
  JOIN everfold_projections p ON p.id = g.projection
 WHERE g.id = ?1
