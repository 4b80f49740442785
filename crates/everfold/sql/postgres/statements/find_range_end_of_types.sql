-- Where a batch ends, for a projection of some types: the last of the next events, and how many.
-- Positions come from the index on (type, position), whatever the server believes of the table: the
-- order by both, and the comparisons of both, are of no use to another. Of common types a short range of positions is
-- enough, so that each type is not read as far as the batch could reach; only if that holds fewer
-- is the whole range looked at.
-- $1 after bigint, $2 up_to bigint, $3 max bigint, $4 types text[]. One row; last is NULL if there are
-- none. Takes no locks.
WITH near AS MATERIALIZED (
    SELECT p.position
      FROM unnest($4::text[]) AS t(type)
      CROSS JOIN LATERAL (
          SELECT e.position FROM everfold.events e
           WHERE (e.type, e.position) > (t.type COLLATE "C", $1)
             AND (e.type, e.position) <= (t.type COLLATE "C", least($2, $1 + 2 * $3))
           ORDER BY e.type, e.position LIMIT $3) p
     ORDER BY p.position LIMIT $3
), far AS (
    SELECT p.position
      FROM unnest($4::text[]) AS t(type)
      CROSS JOIN LATERAL (
          SELECT e.position FROM everfold.events e
           WHERE (e.type, e.position) > (t.type COLLATE "C", $1 + 2 * $3)
             AND (e.type, e.position) <= (t.type COLLATE "C", $2)
           ORDER BY e.type, e.position LIMIT $3) p
     WHERE (SELECT count(*) FROM near) < $3
     ORDER BY p.position LIMIT $3
)
SELECT max(p.position) AS last, count(*) AS events
  FROM (SELECT position FROM near UNION ALL SELECT position FROM far ORDER BY position LIMIT $3) p
