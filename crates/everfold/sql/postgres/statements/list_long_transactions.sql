-- Sessions of this database whose transaction has been open for longer than so many seconds, the
-- oldest first, and whether vacuum must keep for them what has died since. At most 3. What this role
-- may not see of another's is not there. Takes no locks.
-- $1 seconds float8
SELECT a.pid, a.application_name, a.usename::text, a.state, a.query, a.xact_start,
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8,
       a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL
  FROM pg_stat_activity a
 WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
   AND a.backend_type = 'client backend'
   AND a.xact_start < clock_timestamp() - make_interval(secs => $1)
 ORDER BY a.xact_start LIMIT 3
