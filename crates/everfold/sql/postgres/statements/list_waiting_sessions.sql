-- Sessions of this database that wait for a lock, the longest first, each with one of those it waits
-- for: who waits (pid, application, query), for how many seconds, for what, and who has it (pid, NULL:
-- a prepared transaction, or nobody by now; name of that, application, user, state, query). At most 5.
-- Whoever is only ahead in the queue is named last; a prepared transaction only where it has this lock.
-- Takes no locks.
WITH waiting AS MATERIALIZED (
    SELECT l.*, a.application_name, a.query
      FROM pg_locks l
      JOIN pg_stat_activity a ON a.pid = l.pid AND a.datname = current_database()
     WHERE NOT l.granted
     ORDER BY l.waitstart NULLS LAST LIMIT 5
)
SELECT w.pid, w.application_name, w.query,
       extract(epoch FROM clock_timestamp() - w.waitstart)::float8,
       CASE WHEN w.locktype = 'advisory' AND w.classid = 'everfold.stream_snapshots'::regclass THEN 'a stream'
            WHEN w.locktype = 'advisory' AND w.classid = 'everfold.skips'::regclass THEN 'a key'
            WHEN w.locktype = 'advisory' AND w.classid = 'everfold.generations'::regclass THEN 'a gate'
            WHEN w.locktype = 'advisory' AND w.classid = 'everfold.store'::regclass THEN 'the registry gate'
            WHEN w.relation IS NOT NULL AND w.locktype = 'relation' THEN w.relation::regclass::text
            WHEN w.locktype IN ('transactionid', 'tuple') THEN 'a row'
            ELSE 'a lock (' || w.locktype || ')' END,
       nullif(b.pid, 0), x.gid, h.application_name, h.usename::text, h.state, h.query
  FROM waiting w
  LEFT JOIN LATERAL (
        SELECT b.pid FROM unnest(pg_blocking_pids(w.pid)) AS b(pid)
         ORDER BY EXISTS (SELECT FROM pg_locks o WHERE o.pid = b.pid AND NOT o.granted), b.pid LIMIT 1) b ON true
  LEFT JOIN pg_stat_activity h ON h.pid = b.pid
  LEFT JOIN LATERAL (
        SELECT x.gid FROM pg_prepared_xacts x
          JOIN pg_locks o ON o.granted AND o.pid IS NULL
           AND o.virtualtransaction = '-1/' || x.transaction::text
         WHERE b.pid = 0
           AND (o.locktype, o.database, o.relation, o.page, o.tuple, o.transactionid, o.classid, o.objid, o.objsubid)
               IS NOT DISTINCT FROM (w.locktype, w.database, w.relation, w.page, w.tuple, w.transactionid,
                                     w.classid, w.objid, w.objsubid)
         LIMIT 1) x ON true
 ORDER BY w.waitstart NULLS LAST
