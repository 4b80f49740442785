-- Where a batch ends, for a projection of some types: the last of the next events, and how many.
-- Positions come from the index on (type, position). Of common types a short range of positions is
-- enough, so that each type is not read as far as the batch could reach; only if that holds fewer
-- is the whole range looked at.
-- $1 after bigint, $2 up_to bigint, $3 max bigint, $4 types text[]. One row; last is NULL if there are
-- none. Takes no locks.
WITH near AS MATERIALIZED (
    SELECT p.position
      FROM unnest($4::text[]) AS t(type)
      CROSS JOIN LATERAL (
          SELECT e.position FROM everfold.events e
           WHERE e.type = t.type AND e.position > $1 AND e.position <= least($2, $1 + 2 * $3)
           ORDER BY e.position LIMIT $3) p
     ORDER BY p.position LIMIT $3
), far AS (
    SELECT p.position
      FROM unnest($4::text[]) AS t(type)
      CROSS JOIN LATERAL (
          SELECT e.position FROM everfold.events e
           WHERE e.type = t.type AND e.position > $1 + 2 * $3 AND e.position <= $2
           ORDER BY e.position LIMIT $3) p
     WHERE (SELECT count(*) FROM near) < $3
     ORDER BY p.position LIMIT $3
)
SELECT max(p.position) AS last, count(*) AS events
  FROM (SELECT position FROM near UNION ALL SELECT position FROM far ORDER BY position LIMIT $3) p
