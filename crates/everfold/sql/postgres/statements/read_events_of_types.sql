-- Events for a batch of a projection of some types, found as in find_range_end_of_types.sql.
-- $1 after bigint, $2 up_to bigint, $3 max bigint, $4 types text[]. Takes no locks.
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
SELECT e.position, e.stream_id, e.version, e.id, e.type, e.schema_version, e.data, e.metadata,
       e.recorded_at
  FROM (SELECT position FROM near UNION ALL SELECT position FROM far ORDER BY position LIMIT $3) p
  JOIN everfold.events e USING (position)
 ORDER BY e.position
