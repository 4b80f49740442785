-- Prepared transactions of this database, the oldest first: name, owner, since when, for how many
-- seconds, and how many there are in all. At most 5. Takes no locks.
SELECT x.gid, x.owner::text, x.prepared,
       extract(epoch FROM clock_timestamp() - x.prepared)::float8, count(*) OVER ()
  FROM pg_prepared_xacts x
 WHERE x.database = current_database()
 ORDER BY x.prepared LIMIT 5
