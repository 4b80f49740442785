-- How many events of some types there are, counted up to a bound.
--   $1 text[] types, NULL for all
--   $2 bigint bound
-- Rows: one, the count. Takes no locks.
SELECT count(*)
  FROM (SELECT FROM everfold.events e WHERE $1::text[] IS NULL
        UNION ALL
        SELECT FROM unnest($1::text[]) AS t(type)
         CROSS JOIN LATERAL (SELECT FROM everfold.events e WHERE e.type = t.type LIMIT $2) e
        LIMIT $2) counted
