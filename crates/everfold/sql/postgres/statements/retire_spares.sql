-- Retires spare generations of a projection that are not of the definition that readers see: nothing
-- will ever fill them.
-- $1 projection integer. No rows. Locks the rows of those generations.
UPDATE everfold.generations g
   SET status = 'retired', reason = 'readers see another version, or none', status_since = clock_timestamp()
 WHERE g.projection = $1 AND g.status = 'spare'
   AND NOT EXISTS (SELECT FROM everfold.projections p
                     JOIN everfold.generations a ON a.id = p.active_generation
                    WHERE p.id = $1 AND (a.version, a.definition_hash) = (g.version, g.definition_hash))
