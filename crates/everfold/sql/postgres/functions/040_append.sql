-- Appends several events to one stream in the caller's transaction: the typed-array form.
-- NULL elements of metadata, ids and schema_versions (or the whole array NULL) take the defaults.
-- Same locks and order as everfold.append_event, and no search_path either.
CREATE OR REPLACE FUNCTION everfold.append(
    stream_id text, expected_version bigint, types text[], data jsonb[],
    metadata jsonb[] DEFAULT NULL, ids uuid[] DEFAULT NULL, schema_versions integer[] DEFAULT NULL,
    wait boolean DEFAULT true,
    OUT first_position bigint, OUT last_position bigint, OUT version bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    the_stream ALIAS FOR $1;
    expected ALIAS FOR $2;
    event_count integer := pg_catalog.cardinality($3);
    new_ids pg_catalog.uuid[] := $6;
    actual bigint;
    done boolean;
    inserted bigint;
    positions bigint[];
    inline integer[];
    inline_applied bigint[];
BEGIN
    IF the_stream IS NULL OR pg_catalog.octet_length(the_stream) OPERATOR(pg_catalog.<) 1
        OR pg_catalog.octet_length(the_stream) OPERATOR(pg_catalog.>) 512
        OR event_count IS NULL OR event_count OPERATOR(pg_catalog.<) 1
        OR event_count OPERATOR(pg_catalog.>) 10000
        OR pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) 'read committed'
    THEN
        PERFORM everfold.refuse_append(the_stream, event_count);
    END IF;
    IF $4 IS NULL OR pg_catalog.cardinality($4) OPERATOR(pg_catalog.<>) event_count
        OR pg_catalog.cardinality($5) OPERATOR(pg_catalog.<>) event_count
        OR pg_catalog.cardinality($6) OPERATOR(pg_catalog.<>) event_count
        OR pg_catalog.cardinality($7) OPERATOR(pg_catalog.<>) event_count
    THEN
        RAISE EXCEPTION 'append to stream "%": the arrays differ in length', the_stream
            USING ERRCODE = 'EF003', HINT = 'give one element per event in each array';
    END IF;
    IF new_ids IS NULL OR pg_catalog.array_position(new_ids, NULL) IS NOT NULL THEN
        SELECT pg_catalog.array_agg(coalesce($6[n], everfold.uuid_v7()) ORDER BY n) INTO new_ids
          FROM pg_catalog.generate_series(1, event_count) n;
    END IF;

    IF NOT everfold.enter_append(the_stream, $8) THEN
        PERFORM everfold.refuse_busy_stream(the_stream);
    END IF;

    SELECT (SELECT e.version FROM everfold.events e
             WHERE e.stream_id OPERATOR(pg_catalog.=) the_stream ORDER BY e.version DESC LIMIT 1),
           ARRAY(SELECT CASE WHEN g.key_fields IS NULL THEN g.id ELSE OPERATOR(pg_catalog.-) g.id END
                   FROM everfold.generations g
                  WHERE g.lifecycle OPERATOR(pg_catalog.=) 'inline'
                    AND g.status OPERATOR(pg_catalog.<>) ALL ('{kept,retired,spare}'::pg_catalog.text[])
                    AND (g.event_types IS NULL OR g.event_types OPERATOR(pg_catalog.&&) $3)
                  ORDER BY g.id)
      INTO actual, inline;
    actual := coalesce(actual, 0);

    IF expected OPERATOR(pg_catalog.<>) actual
        AND (expected OPERATOR(pg_catalog.<>) -1 OR actual OPERATOR(pg_catalog.=) 0)
    THEN
        SELECT r.first_position, r.last_position, r.version
          INTO append.first_position, append.last_position, append.version
          FROM everfold.repeat_or_conflict(the_stream, expected, actual, new_ids, $3, $4) r;
        RETURN;
    END IF;

    IF pg_catalog.cardinality(inline) OPERATOR(pg_catalog.>) 0 AND everfold.enter_inline(inline) THEN
        IF everfold.lock_inline_keys(inline,
            pg_catalog.array_fill(the_stream, ARRAY[event_count]), $3, $4, $5, $8) IS NOT NULL
        THEN
            PERFORM everfold.refuse_busy_key(the_stream);
        END IF;
    END IF;

    done := everfold.announce();

    WITH stored AS (
        INSERT INTO everfold.events
            (stream_id, version, type, schema_version, data, metadata, id)
        SELECT the_stream, actual OPERATOR(pg_catalog.+) u.n, u.type, coalesce(u.schema_version, 1), u.data,
               coalesce(u.metadata, '{}'), u.id
          FROM ROWS FROM (pg_catalog.unnest($3), pg_catalog.unnest($4), pg_catalog.unnest($5),
                          pg_catalog.unnest(new_ids), pg_catalog.unnest($7))
               WITH ORDINALITY AS u(type, data, metadata, id, schema_version, n)
         ORDER BY u.n
        ON CONFLICT ON CONSTRAINT events_id_key DO NOTHING
        RETURNING position
    )
    SELECT pg_catalog.count(*), pg_catalog.min(position), pg_catalog.max(position),
           pg_catalog.array_agg(position)
      INTO inserted, append.first_position, append.last_position, positions
      FROM stored;
    append.version := actual OPERATOR(pg_catalog.+) event_count;

    IF inserted OPERATOR(pg_catalog.<) event_count THEN
        -- Known ids: a repeat stored nothing just now, and anything else is refused and undone.
        IF (SELECT pg_catalog.count(DISTINCT i) FROM pg_catalog.unnest(new_ids) i)
            OPERATOR(pg_catalog.<) event_count
        THEN
            RAISE EXCEPTION 'append to stream "%" uses an event id twice', the_stream
                USING ERRCODE = 'EF004', HINT = 'give every event an id of its own';
        END IF;
        IF inserted OPERATOR(pg_catalog.>) 0 THEN
            RAISE EXCEPTION
                'append to stream "%": % of % event ids are already stored, the others are new',
                the_stream, event_count OPERATOR(pg_catalog.-) inserted, event_count
                USING ERRCODE = 'EF004',
                    HINT = 'a retry repeats the whole append with ids, types and data unchanged';
        END IF;
        SELECT r.first_position, r.last_position, r.version
          INTO append.first_position, append.last_position, append.version
          FROM everfold.find_repeat(the_stream, new_ids, $3, $4) r;
    ELSIF pg_catalog.cardinality(inline) OPERATOR(pg_catalog.>) 0 THEN
        inline_applied := everfold.apply_inline(inline, positions, NULL);
    END IF;
END $$;
