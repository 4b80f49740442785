-- Transactions of this database that may still see a retired generation, in words: their snapshot is
-- older than the transaction that retired it, or they hold its gate. Snapshots and locks of others are
-- visible to everybody; when their transactions began is not.
-- $1 generation integer, $2 virtual transactions text[] to look among, or NULL for all. Takes no locks.
WITH mark AS (
    SELECT age(g.xmin) AS age FROM everfold.generations g WHERE g.id = $1
)
SELECT l.virtualtransaction,
       format('process %s of %s%s%s', a.pid, coalesce(a.usename, 'an unknown user'),
              coalesce(' (' || nullif(a.application_name, '') || ')', ''),
              coalesce(', in a transaction since ' || to_char(a.xact_start, 'YYYY-MM-DD HH24:MI:SS'), ''))
  FROM mark
  JOIN pg_catalog.pg_stat_activity a
    ON a.datid = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
   AND a.pid <> pg_backend_pid() AND a.backend_type IS DISTINCT FROM 'autovacuum worker'
  JOIN pg_catalog.pg_locks l ON l.pid = a.pid AND l.locktype = 'virtualxid' AND l.mode = 'ExclusiveLock'
 WHERE ($2::text[] IS NULL OR l.virtualtransaction = ANY ($2))
   AND (age(a.backend_xmin) >= mark.age
        OR EXISTS (SELECT FROM pg_catalog.pg_locks k
                    WHERE k.pid = a.pid AND k.locktype = 'advisory' AND k.granted AND k.objsubid = 2
                      AND k.classid = 'everfold.generations'::regclass AND k.objid::bigint = $1))
UNION ALL
SELECT x.gid, format('the prepared transaction "%s" of %s', x.gid, x.owner)
  FROM mark
  JOIN pg_catalog.pg_prepared_xacts x ON x.database = current_database() AND age(x.transaction) >= mark.age
 WHERE $2::text[] IS NULL OR x.gid = ANY ($2)
