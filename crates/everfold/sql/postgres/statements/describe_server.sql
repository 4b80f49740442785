-- What `everfold doctor` looks at first: one row. Needs only SELECT on everfold.events and everfold.store.
-- Takes no locks.
SELECT current_setting('server_version') AS version,
       current_setting('server_version_num')::integer AS version_number,
       pg_is_in_recovery() AS in_recovery,
       current_user::text AS "user",
       has_table_privilege('everfold.events', 'SELECT') AS may_read,
       has_function_privilege('everfold.append(text, bigint, jsonb)', 'EXECUTE') AS may_append,
       current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('idle_in_transaction_session_timeout') AS idle_in_transaction_session_timeout,
       current_setting('autovacuum') AS autovacuum,
       current_setting('track_activities') AS track_activities,
       ARRAY(SELECT r FROM unnest(ARRAY['everfold_writer', 'everfold_events_reader',
                 'everfold_read_models', 'everfold_admin']) r
              WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = r)) AS missing_roles,
       (SELECT functions_hash FROM everfold.store) AS functions_hash,
       (SELECT coalesce(max(position), 0) FROM everfold.events) AS highest_position
