-- Whether there are more events of some types than a bound, for a projection that is registered.
-- $1 types text[], NULL for all; $2 bound bigint. One row: how many there are, counted up to the bound.
-- Takes no locks. A range and an order that only the index by type has: a plan that looks for a rare type
-- in the whole log, because the statistics take it for a common one, is out of the question.
SELECT count(*)
  FROM ((SELECT FROM everfold.events e WHERE $1 IS NULL LIMIT $2)
        UNION ALL
        (SELECT FROM unnest($1) AS t(type)
           CROSS JOIN LATERAL (SELECT FROM everfold.events e
                                WHERE e.type >= t.type AND e.type <= t.type
                                ORDER BY e.type, e.position LIMIT $2) e
          LIMIT $2)) counted
