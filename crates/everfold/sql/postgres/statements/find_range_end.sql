-- Where a batch ends, for a projection of all types: the last of the next events, and how many.
-- $1 after bigint, $2 up_to bigint, $3 max bigint. One row; last is NULL if there are none.
-- Takes no locks.
SELECT max(p.position) AS last, count(*) AS events
  FROM (SELECT e.position FROM everfold.events e
         WHERE e.position > $1 AND e.position <= $2
         ORDER BY e.position LIMIT $3) p
