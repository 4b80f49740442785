-- How near this database is to running out of transaction numbers: one row with the age of the oldest
-- and that of the oldest multixact. Takes no locks.
SELECT age(d.datfrozenxid)::bigint, mxid_age(d.datminmxid)::bigint
  FROM pg_database d WHERE d.datname = current_database()
