-- Appends one event for a client that applies inline projections of its own in this transaction,
-- before it commits: those that `carries` names. Same locks, order and statements as
-- everfold.append_event.
--
-- `carried` are the generations that it has to apply the event to, which comes back as it is stored;
-- NULL if the event was stored before. Where one of them owes something (skips, dead letters), more
-- than this event may be due: EF011, nothing is stored, and everfold.append_group does it. `carries` is
-- NULL if the caller found no transaction: refused.
CREATE OR REPLACE FUNCTION everfold.append_event_carrying(
    stream_id text, expected_version bigint, type text, data jsonb, metadata jsonb, id uuid,
    schema_version integer, wait boolean, carries integer[],
    OUT stored_position bigint, OUT stored_version bigint, OUT stored_at timestamptz,
    OUT stored_data jsonb, OUT stored_metadata jsonb, OUT carried integer[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    the_stream ALIAS FOR $1;
    expected ALIAS FOR $2;
    actual bigint;
    done boolean;
    inline integer[];
    applications pg_catalog.text[];
    application pg_catalog.text;
BEGIN
    IF the_stream IS NULL OR pg_catalog.octet_length(the_stream) OPERATOR(pg_catalog.<) 1
        OR pg_catalog.octet_length(the_stream) OPERATOR(pg_catalog.>) 512
        OR pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) 'read committed'
        OR $9 IS NULL
    THEN
        PERFORM everfold.refuse_append(the_stream, 1);
        PERFORM everfold.refuse_without_transaction();
    END IF;

    IF NOT everfold.enter_append(the_stream, $8) THEN
        PERFORM everfold.refuse_busy_stream(the_stream);
    END IF;

    SELECT coalesce((SELECT e.version FROM everfold.events e
             WHERE e.stream_id OPERATOR(pg_catalog.=) the_stream ORDER BY e.version DESC LIMIT 1), 0),
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
        SELECT r.first_position, r.version INTO stored_position, stored_version
          FROM everfold.repeat_or_conflict(the_stream, expected, actual, ARRAY[$6], ARRAY[$3], ARRAY[$4]) r;
        RETURN;
    END IF;

    IF 0 OPERATOR(pg_catalog.>) ANY (inline)
        AND everfold.lock_inline_keys(inline, ARRAY[the_stream], ARRAY[$3], ARRAY[$4], ARRAY[$5], $8) IS NOT NULL
    THEN
        PERFORM everfold.refuse_busy_key(the_stream);
    END IF;

    done := everfold.announce();

    INSERT INTO everfold.events (stream_id, version, type, schema_version, data, metadata, id)
    VALUES (the_stream, actual OPERATOR(pg_catalog.+) 1, $3, $7, $4, $5, $6)
    ON CONFLICT ON CONSTRAINT events_id_key DO NOTHING
    RETURNING position, version, recorded_at, data, metadata,
        ARRAY(SELECT s.step FROM everfold.inline_steps(inline, $9) s ORDER BY s.generation)
      INTO stored_position, stored_version, stored_at, stored_data, stored_metadata, applications;

    IF NOT FOUND THEN
        SELECT r.first_position, r.version INTO stored_position, stored_version
          FROM everfold.find_repeat(the_stream, ARRAY[$6], ARRAY[$3], ARRAY[$4]) r;
        RETURN;
    END IF;
    carried := '{}';
    FOREACH application IN ARRAY applications LOOP
        IF pg_catalog.starts_with(application, 'SELECT') THEN
            EXECUTE application USING ROW(stored_position, stored_version, stored_at, $6, $7, the_stream, $3,
                stored_data, stored_metadata)::everfold.events;
        ELSE
            carried := pg_catalog.array_append(carried, application::int);
        END IF;
    END LOOP;
END $$;
