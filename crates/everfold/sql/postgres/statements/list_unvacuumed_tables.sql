-- Tables of everfold and of its generations that autovacuum is switched off for, or in which dead rows
-- outnumber live ones by the server's estimate: name, live, dead, last vacuum in seconds (NULL: never),
-- whether it is switched off. At most 5, those with the most dead rows first. Takes no locks.
SELECT format('%I.%I', s.schemaname, s.relname), s.n_live_tup, s.n_dead_tup,
       extract(epoch FROM clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))::float8, o.is_off
  FROM pg_stat_all_tables s
  JOIN pg_class c ON c.oid = s.relid
 CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM pg_options_to_table(c.reloptions) o
         WHERE o.option_name = 'autovacuum_enabled' AND NOT o.option_value::boolean) AS is_off) o
 WHERE (s.schemaname = 'everfold' OR s.schemaname ~ '^everfold_[0-9]+_')
   AND (o.is_off OR s.n_dead_tup > 10000 AND s.n_dead_tup > s.n_live_tup)
 ORDER BY s.n_dead_tup DESC, 1 LIMIT 5
