-- Appends one event in the caller's transaction: the short path. With `wait` false, a stream that
-- another transaction is appending to is not waited for, and a key for a moment only: EF009.
--
-- Locks, all held to the end of the transaction: registry gate (shared), stream (exclusive), for
-- inline projections gates (shared) and keys (exclusive), announcement (shared). Their order and the
-- separate statements are the protocol of docs/design.md, Append: change nothing here without its
-- experiments.
--
-- Its plans are kept: for the lists in it the server would make new ones in every call, which costs more than
-- all the rest.
--
-- It pins no search_path, which costs time in every call. Instead every name and operator in it says its schema; it/roles sets traps for those that do not.
CREATE OR REPLACE FUNCTION everfold.append_event(
    stream_id text, expected_version bigint, type text, data jsonb,
    metadata jsonb DEFAULT '{}', id uuid DEFAULT NULL, schema_version integer DEFAULT 1,
    wait boolean DEFAULT true,
    OUT first_position bigint, OUT last_position bigint, OUT version bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    the_stream ALIAS FOR $1;
    expected ALIAS FOR $2;
    new_id pg_catalog.uuid := coalesce($6, everfold.uuid_v7());
    actual bigint;
    done boolean;
    inline integer[];
    recorded timestamptz;
    applications pg_catalog.text[];
    application pg_catalog.text;
BEGIN
    IF the_stream IS NULL OR pg_catalog.octet_length(the_stream) OPERATOR(pg_catalog.<) 1
        OR pg_catalog.octet_length(the_stream) OPERATOR(pg_catalog.>) 512
        OR pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) 'read committed'
    THEN
        PERFORM everfold.refuse_append(the_stream, 1);
    END IF;

    IF NOT everfold.enter_append(the_stream, $8) THEN
        PERFORM everfold.refuse_busy_stream(the_stream);
    END IF;

    -- A later statement than the locks: its snapshot sees every append that held them before, and
    -- every projection that was registered before.
    SELECT coalesce((SELECT e.version FROM everfold.events e
             WHERE e.stream_id OPERATOR(pg_catalog.=) the_stream ORDER BY e.version DESC LIMIT 1), 0),
           -- Their gates too, in the order of their ids: what they are is read with the insert.
           ARRAY(SELECT CASE WHEN pg_catalog.pg_advisory_xact_lock_shared(
                                 'everfold.generations'::pg_catalog.regclass::pg_catalog.oid::int, g.id) IS NULL
                             THEN NULL
                             WHEN g.key_fields IS NULL THEN g.id ELSE OPERATOR(pg_catalog.-) g.id END
                   FROM everfold.generations g
                  WHERE g.lifecycle OPERATOR(pg_catalog.=) 'inline'
                    AND g.status OPERATOR(pg_catalog.<>) ALL ('{kept,retired,spare}'::pg_catalog.text[])
                    AND (g.event_types IS NULL OR $3 OPERATOR(pg_catalog.=) ANY (g.event_types))
                  ORDER BY g.id)
      INTO actual, inline;

    IF expected OPERATOR(pg_catalog.<>) actual
        AND (expected OPERATOR(pg_catalog.<>) -1 OR actual OPERATOR(pg_catalog.=) 0)
    THEN
        SELECT r.first_position, r.last_position, r.version
          INTO append_event.first_position, append_event.last_position, append_event.version
          FROM everfold.repeat_or_conflict(the_stream, expected, actual,
                   ARRAY[new_id], ARRAY[$3], ARRAY[$4]) r;
        RETURN;
    END IF;

    IF 0 OPERATOR(pg_catalog.>) ANY (inline)
        AND everfold.lock_inline_keys(inline, ARRAY[the_stream], ARRAY[$3], ARRAY[$4], ARRAY[$5], $8) IS NOT NULL
    THEN
        PERFORM everfold.refuse_busy_key(the_stream);
    END IF;

    done := everfold.announce();

    IF inline OPERATOR(pg_catalog.=) '{}'::pg_catalog.int4[] THEN
        INSERT INTO everfold.events (stream_id, version, type, schema_version, data, metadata, id)
        VALUES (the_stream, actual OPERATOR(pg_catalog.+) 1, $3, $7, $4, $5, new_id)
        ON CONFLICT ON CONSTRAINT events_id_key DO NOTHING
        RETURNING position, position, version
          INTO append_event.first_position, append_event.last_position, append_event.version;
    ELSE
        -- A later statement than the gates: its snapshot sees what the generations are now.
        INSERT INTO everfold.events (stream_id, version, type, schema_version, data, metadata, id)
        VALUES (the_stream, actual OPERATOR(pg_catalog.+) 1, $3, $7, $4, $5, new_id)
        ON CONFLICT ON CONSTRAINT events_id_key DO NOTHING
        RETURNING position, position, version, recorded_at,
            ARRAY(SELECT s.step FROM everfold.inline_steps(inline, NULL) s ORDER BY s.generation)
          INTO append_event.first_position, append_event.last_position, append_event.version,
               recorded, applications;
    END IF;

    IF NOT FOUND THEN
        SELECT r.first_position, r.last_position, r.version
          INTO append_event.first_position, append_event.last_position, append_event.version
          FROM everfold.find_repeat(the_stream, ARRAY[new_id], ARRAY[$3], ARRAY[$4]) r;
        RETURN;
    END IF;
    IF applications IS NULL THEN
        RETURN;
    END IF;
    FOREACH application IN ARRAY applications LOOP
        -- One value: each costs as much as a call.
        EXECUTE application USING ROW(append_event.first_position, append_event.version, recorded, new_id,
            $7, the_stream, $3, $4, $5)::everfold.events;
    END LOOP;
END $$;
