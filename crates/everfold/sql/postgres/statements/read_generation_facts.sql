-- What a plan has to know of generations beside what list_generations.sql says: those that are not
-- retired, and those that are and still have tables; spare ones are nobody's concern.
-- Rows: id, projection's namespace, name, version, status, definition, whether a live worker carries it,
-- rows as far as the statistics know them (NULL: they do not), bytes; in the order of their ids. Takes no
-- locks on tables of read models.
SELECT g.id, p.namespace, p.name, g.version, g.status, g.definition,
       EXISTS (SELECT FROM everfold.workers w
                WHERE w.expires_at >= clock_timestamp() AND g.id = ANY (w.carries)),
       t.rows, t.bytes
  FROM everfold.generations g
  JOIN everfold.projections p ON p.id = g.projection
 CROSS JOIN LATERAL (
       SELECT CASE WHEN bool_and(c.reltuples >= 0) THEN sum(c.reltuples)::bigint END AS rows,
              coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint AS bytes, count(*) AS tables
         FROM pg_catalog.pg_class c
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = g.home AND c.relkind IN ('r', 'm')) t
 WHERE g.status <> 'spare' AND (g.status <> 'retired' OR t.tables > 0)
 ORDER BY g.id
