-- Inline projections of which something knows a position that the log has not: name, the table that
-- knows, the position, the highest one for each. Catch-up projections have a checkpoint that tells. What
-- is looked at belongs to the active generation, so that a rebuild ends it; it is small, or looked at from
-- its newest row. Takes no locks.
SELECT DISTINCT ON (p.name) p.name, k.place, k.position
  FROM everfold.projections p
  JOIN everfold.generations g ON g.id = p.active_generation AND g.lifecycle = 'inline'
 CROSS JOIN LATERAL (
       SELECT 'verifications' AS place, (SELECT v.position FROM everfold.verifications v
               WHERE v.projection = p.id AND v.generation = g.id ORDER BY v.id DESC LIMIT 1) AS position
       UNION ALL
       SELECT 'skips', (SELECT max(s.position) FROM everfold.skips s WHERE s.generation = g.id)
       UNION ALL
       SELECT 'dead_letters', (SELECT max(d.position) FROM everfold.dead_letters d WHERE d.generation = g.id)
       UNION ALL
       SELECT 'checkpoints', (SELECT max(c.position) FROM everfold.checkpoints c WHERE c.generation = g.id)
       UNION ALL
       SELECT 'rebuilds', (SELECT max(r.cutoff) FROM everfold.rebuilds r WHERE r.target = g.id)
       UNION ALL
       SELECT 'read_model_snapshots', (SELECT max(n.position)
               FROM everfold.read_model_snapshots s CROSS JOIN LATERAL unnest(s.positions) AS n(position)
              WHERE s.generation = g.id)
       UNION ALL
       SELECT 'system_messages', (SELECT max(m.position)
               FROM (SELECT m.position FROM everfold.system_messages m
                      WHERE m.generation = g.id ORDER BY m.id DESC LIMIT 100) m)
       ) k
 WHERE k.position > (SELECT coalesce(max(e.position), 0) FROM everfold.events e)
 ORDER BY p.name, k.position DESC, k.place
