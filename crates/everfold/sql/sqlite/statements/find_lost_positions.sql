-- Inline projections of which something knows a position that the log has not: name, the table that
-- knows, the position, the highest one for each. Catch-up projections have a checkpoint that tells. What
-- is looked at belongs to the active generation, so that a rebuild ends it; it is small, or looked at from
-- its newest row.
WITH inline AS (
    SELECT p.name, g.id
      FROM everfold_projections p
      JOIN everfold_generations g ON g.id = p.active_generation AND g.lifecycle = 'inline'
), known AS (
    SELECT i.name, 'verifications' AS place, (SELECT v.position FROM everfold_verifications v
            WHERE v.generation = i.id ORDER BY v.id DESC LIMIT 1) AS position
      FROM inline i
    UNION ALL
    SELECT i.name, 'skips', (SELECT max(s.position) FROM everfold_skips s WHERE s.generation = i.id)
      FROM inline i
    UNION ALL
    SELECT i.name, 'dead_letters',
           (SELECT max(d.position) FROM everfold_dead_letters d WHERE d.generation = i.id)
      FROM inline i
    UNION ALL
    SELECT i.name, 'checkpoints',
           (SELECT max(c.position) FROM everfold_checkpoints c WHERE c.generation = i.id)
      FROM inline i
    UNION ALL
    SELECT i.name, 'read_model_snapshots', (SELECT max(n.value)
            FROM everfold_read_model_snapshots s, json_each(s.positions) n WHERE s.generation = i.id)
      FROM inline i
    UNION ALL
    SELECT i.name, 'system_messages', (SELECT max(m.position)
            FROM (SELECT m.position FROM everfold_system_messages m
                   WHERE m.generation = i.id ORDER BY m.id DESC LIMIT 100) m)
      FROM inline i
)
SELECT k.name, k.place, max(k.position) FROM known k
 WHERE k.position > (SELECT coalesce(max(e.position), 0) FROM everfold_events e)
 GROUP BY k.name
 ORDER BY k.name
