-- How many events of some types there are, counted up to a bound.
--   $1 text[] types, NULL for all
--   $2 bigint bound
-- Rows: one, the count. Takes no locks.
SELECT count(*)
  FROM (SELECT FROM everfold.events e WHERE $1::text[] IS NULL OR e.type = ANY ($1) LIMIT $2) counted
