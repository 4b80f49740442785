-- Replication slots that nobody reads from: name, plugin (NULL: physical), whether it keeps dead rows
-- from being removed, and the bytes of log that it keeps (NULL: none, or not known). Those that a standby
-- keeps in step with its primary (PostgreSQL 17) are idle there by design. Takes no locks.
SELECT s.slot_name::text, s.plugin::text, s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL,
       pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                            ELSE pg_current_wal_lsn() END, s.restart_lsn)::bigint
  FROM pg_replication_slots s
 WHERE NOT s.active AND to_jsonb(s) ->> 'synced' IS DISTINCT FROM 'true'
 ORDER BY s.restart_lsn NULLS LAST LIMIT 3
