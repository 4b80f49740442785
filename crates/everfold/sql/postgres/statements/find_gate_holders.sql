-- Transactions that hold the gate of one of these generations, shared as appends do; not our own.
-- $1 generations integer[], 0 for the registry gate. Rows: virtual transaction, process (NULL: prepared), name of the prepared
-- transaction, user, application, seconds since the transaction began, state, query. What this role
-- may not see is NULL. Takes no locks.
--
-- A virtual transaction is a backend and a number that it counts up: no two transactions have the same
-- one while a server runs. That of a prepared transaction is kept, or made from its number after a
-- restart; which one it is shows in the lock that it holds on its own number.
SELECT DISTINCT ON (l.virtualtransaction)
       l.virtualtransaction, l.pid, x.gid::text, a.usename::text, a.application_name,
       extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, x.prepared))::float8,
       a.state, a.query
  FROM pg_locks l
  LEFT JOIN pg_stat_activity a ON a.pid = l.pid
  LEFT JOIN LATERAL (SELECT x.gid, x.prepared
         FROM pg_locks t JOIN pg_prepared_xacts x ON x.transaction = t.transactionid
        WHERE l.pid IS NULL AND t.pid IS NULL AND t.locktype = 'transactionid'
          AND t.virtualtransaction = l.virtualtransaction) x ON true
 WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted AND l.mode = 'ShareLock'
   AND (l.classid = 'everfold.generations'::regclass::oid AND l.objid = ANY (SELECT g::oid FROM unnest($1) g)
        OR l.classid = 'everfold.store'::regclass::oid AND l.objid = 0 AND 0 = ANY ($1))
   AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
   AND l.pid IS DISTINCT FROM pg_backend_pid()
 ORDER BY l.virtualtransaction
