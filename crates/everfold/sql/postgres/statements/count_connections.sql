-- Connections that are taken, and what may be: one row. Takes no locks.
-- What kind of process another user's session is cannot be seen by everybody; one with a user and a
-- database is taken for a client.
WITH clients AS (
    SELECT a.usename, a.application_name, a.state, a.datname
      FROM pg_stat_activity a
     WHERE a.backend_type = 'client backend'
        OR a.backend_type IS NULL AND a.usename IS NOT NULL AND a.datname IS NOT NULL
)
SELECT (SELECT count(*) FROM clients) AS taken,
       current_setting('max_connections')::bigint AS most,
       current_setting('superuser_reserved_connections')::bigint
           + coalesce(current_setting('reserved_connections', true)::bigint, 0) AS reserved,
       (SELECT count(*) FROM clients c WHERE c.usename = session_user) AS of_role,
       (SELECT r.rolconnlimit::bigint FROM pg_roles r WHERE r.rolname = session_user) AS most_of_role,
       session_user::text AS role,
       (SELECT count(*) FROM clients c WHERE c.datname = current_database()) AS of_database,
       (SELECT d.datconnlimit::bigint FROM pg_database d WHERE d.datname = current_database())
           AS most_of_database,
       current_database()::text AS database,
       ARRAY(SELECT format('%s of %s (%s%s)', count(*), coalesce(nullif(c.application_name, ''), 'no application name'),
                           'user ' || c.usename, ', ' || c.state)
               FROM clients c GROUP BY c.usename, c.application_name, c.state
              ORDER BY count(*) DESC, c.application_name LIMIT 3) AS takers,
       (SELECT count(*) FROM pg_locks l WHERE NOT l.fastpath) AS locks,
       current_setting('max_locks_per_transaction')::bigint
           * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint)
           AS most_locks
