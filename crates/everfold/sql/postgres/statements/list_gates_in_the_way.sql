-- Transactions that hold a gate of a projection with an open rebuild, which waits for them when it
-- begins and when it switches: projection, phase, seconds, and who (pid, NULL: a prepared transaction;
-- name of that, application, user, state, query). At most 5. Takes no locks.
SELECT DISTINCT ON (h.since, l.virtualtransaction)
       p.name, r.phase, extract(epoch FROM clock_timestamp() - h.since)::float8,
       l.pid, x.gid, a.application_name, a.usename::text, a.state, a.query
  FROM everfold.rebuilds r
  JOIN everfold.projections p ON p.id = r.projection
  JOIN pg_locks l ON l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted AND l.mode = 'ShareLock'
       AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
       AND (l.classid = 'everfold.generations'::regclass AND l.objid::bigint IN (r.source, r.target)
            OR l.classid = 'everfold.store'::regclass AND l.objid = 0 AND r.phase = 'requested')
  LEFT JOIN pg_stat_activity a ON a.pid = l.pid
  LEFT JOIN LATERAL (SELECT x.gid, x.prepared
         FROM pg_locks t JOIN pg_prepared_xacts x ON x.transaction = t.transactionid
        WHERE l.pid IS NULL AND t.pid IS NULL AND t.locktype = 'transactionid'
          AND t.virtualtransaction = l.virtualtransaction) x ON true
 CROSS JOIN LATERAL (SELECT coalesce(a.xact_start, x.prepared) AS since) h
 WHERE r.finished_at IS NULL AND l.pid IS DISTINCT FROM pg_backend_pid()
 ORDER BY h.since, l.virtualtransaction LIMIT 5
