-- Who may do what. Nobody but the owner may write the tables: the functions do.
REVOKE ALL ON ALL TABLES IN SCHEMA everfold FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA everfold FROM PUBLIC;

DO $$
DECLARE
    role_name text;
    statement text;
BEGIN
    FOR role_name, statement IN VALUES
        ('everfold_writer', 'GRANT USAGE ON SCHEMA everfold TO everfold_writer'),
        ('everfold_writer', 'GRANT SELECT ON everfold.events, everfold.stream_snapshots, everfold.store, everfold.migrations TO everfold_writer'),
        ('everfold_writer', 'GRANT EXECUTE ON FUNCTION
            everfold.append(text, bigint, jsonb),
            everfold.append(text, bigint, text[], jsonb[], jsonb[], uuid[], integer[], boolean),
            everfold.append_event(text, bigint, text, jsonb, jsonb, uuid, integer, boolean),
            everfold.append_event_carrying(text, bigint, text, jsonb, jsonb, uuid, integer, boolean, integer[]),
            everfold.append_group(text[], integer[], bigint[], integer[], text[], jsonb[], jsonb[], uuid[], integer[], boolean, integer[]),
            everfold.append_many(jsonb),
            everfold.give_up_inline(integer[], bigint[], text[], bigint[], text[], boolean[]),
            everfold.stage_import(),
            everfold.import_progress(text),
            everfold.import_chunk(text, bigint, bigint, bigint, text, boolean),
            everfold.save_stream_snapshot(text, text, bigint, integer, jsonb) TO everfold_writer'),
        ('everfold_events_reader', 'GRANT USAGE ON SCHEMA everfold TO everfold_events_reader'),
        ('everfold_events_reader', 'GRANT SELECT ON everfold.events, everfold.store, everfold.migrations, everfold.published_mark TO everfold_events_reader'),
        ('everfold_writer', 'GRANT SELECT ON everfold.projections, everfold.generations, everfold.rebuilds TO everfold_writer'),
        ('everfold_read_models', 'GRANT USAGE ON SCHEMA everfold, read_model TO everfold_read_models'),
        ('everfold_admin', 'GRANT USAGE ON SCHEMA everfold TO everfold_admin'),
        ('everfold_admin', 'GRANT SELECT ON ALL TABLES IN SCHEMA everfold TO everfold_admin'),
        ('everfold_admin', 'GRANT INSERT, UPDATE, DELETE ON everfold.projections, everfold.generations,
            everfold.checkpoints, everfold.workers, everfold.skips, everfold.dead_letters,
            everfold.system_messages, everfold.run_log, everfold.rebuilds, everfold.rebuild_parts,
            everfold.read_model_snapshots, everfold.verifications TO everfold_admin'),
        ('everfold_admin', 'GRANT USAGE, CREATE ON SCHEMA read_model TO everfold_admin'),
        ('everfold_admin', 'GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA everfold TO everfold_admin')
    LOOP
        IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = role_name) THEN
            EXECUTE statement;
        END IF;
    END LOOP;
    FOREACH role_name IN ARRAY ARRAY['everfold_writer', 'everfold_events_reader'] LOOP
        IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = role_name) THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION
                everfold.high_water_mark(), everfold.high_water_mark_holders(),
                everfold.publish_high_water_mark(), everfold.startup_checks(),
                everfold.read_stream(text, bigint, integer, boolean),
                everfold.read_all(bigint, integer, text[]) TO %I', role_name);
        END IF;
    END LOOP;
    FOREACH role_name IN ARRAY ARRAY['everfold_writer', 'everfold_events_reader', 'everfold_read_models'] LOOP
        IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = role_name) THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION
                everfold.wait_for(text, bigint, integer, text), everfold.projection_status(),
                everfold.projection_reach(text, text, bigint) TO %I', role_name);
        END IF;
    END LOOP;
    -- Generations have schemas of their own. Where the owner of the store does not own the database,
    -- its owner has to grant this; until then whoever registers a projection makes them as himself.
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'everfold_admin')
        AND has_database_privilege(current_database(), 'CREATE WITH GRANT OPTION')
    THEN
        EXECUTE format('GRANT CREATE ON DATABASE %I TO everfold_admin', current_database());
    END IF;
END $$;
