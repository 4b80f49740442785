-- Sessions of this database that wait for a lock, the longest first, each with one of those it waits
-- for: who waits (pid, application, query), for how many seconds, for what, and who has it (pid, NULL:
-- a prepared transaction; name of that, application, user, state, query). At most 5. Takes no locks.
SELECT w.pid, w.application_name, w.query,
       extract(epoch FROM clock_timestamp() - l.waitstart)::float8,
       CASE WHEN l.locktype = 'advisory' AND l.classid = 'everfold.stream_snapshots'::regclass THEN 'a stream'
            WHEN l.locktype = 'advisory' AND l.classid = 'everfold.skips'::regclass THEN 'a key'
            WHEN l.locktype = 'advisory' AND l.classid = 'everfold.generations'::regclass THEN 'a gate'
            WHEN l.locktype = 'advisory' AND l.classid = 'everfold.store'::regclass THEN 'the registry gate'
            WHEN l.relation IS NOT NULL AND l.locktype = 'relation' THEN l.relation::regclass::text
            WHEN l.locktype IN ('transactionid', 'tuple') THEN 'a row'
            ELSE 'a lock (' || l.locktype || ')' END,
       nullif(b.pid, 0), x.gid, h.application_name, h.usename::text, h.state, h.query
  FROM pg_locks l
  JOIN pg_stat_activity w ON w.pid = l.pid AND w.datname = current_database()
  LEFT JOIN LATERAL (SELECT b.pid FROM unnest(pg_blocking_pids(l.pid)) AS b(pid) ORDER BY b.pid LIMIT 1) b ON true
  LEFT JOIN pg_stat_activity h ON h.pid = b.pid
  LEFT JOIN LATERAL (SELECT x.gid FROM pg_prepared_xacts x
         WHERE b.pid = 0 AND x.database = current_database() ORDER BY x.prepared LIMIT 1) x ON true
 WHERE NOT l.granted
 ORDER BY l.waitstart NULLS LAST LIMIT 5
