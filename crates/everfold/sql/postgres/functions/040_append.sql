-- Appends several events to one stream in the caller's transaction: the typed-array form.
-- NULL elements of metadata, ids and schema_versions (or the whole array NULL) take the defaults.
-- Same locks and order as everfold.append_event.
CREATE OR REPLACE FUNCTION everfold.append(
    stream_id text, expected_version bigint, types text[], data jsonb[],
    metadata jsonb[] DEFAULT NULL, ids uuid[] DEFAULT NULL, schema_versions integer[] DEFAULT NULL,
    wait boolean DEFAULT true,
    OUT first_position bigint, OUT last_position bigint, OUT version bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, everfold, pg_temp AS $$
#variable_conflict use_column
DECLARE
    the_stream ALIAS FOR $1;
    expected ALIAS FOR $2;
    event_count integer := cardinality($3);
    new_ids uuid[] := $6;
    actual bigint;
    done boolean;
    inserted bigint;
BEGIN
    IF octet_length(the_stream) NOT BETWEEN 1 AND 512 OR the_stream IS NULL
        OR event_count NOT BETWEEN 1 AND 10000 OR event_count IS NULL
        OR current_setting('transaction_isolation') <> 'read committed'
    THEN
        PERFORM everfold.refuse_append(the_stream, event_count);
    END IF;
    IF cardinality($4) IS DISTINCT FROM event_count
        OR cardinality($5) <> event_count OR cardinality($6) <> event_count
        OR cardinality($7) <> event_count
    THEN
        RAISE EXCEPTION 'append to stream "%": the arrays differ in length', the_stream
            USING ERRCODE = 'EF003', HINT = 'give one element per event in each array';
    END IF;
    IF new_ids IS NULL OR array_position(new_ids, NULL) IS NOT NULL THEN
        SELECT array_agg(coalesce($6[n], everfold.uuid_v7()) ORDER BY n) INTO new_ids
          FROM generate_series(1, event_count) n;
    END IF;

    done := everfold.enter_append(the_stream, $8);

    SELECT e.version INTO actual FROM everfold.events e
     WHERE e.stream_id = the_stream ORDER BY e.version DESC LIMIT 1;
    actual := coalesce(actual, 0);

    IF expected <> actual AND (expected <> -1 OR actual = 0) THEN
        SELECT r.first_position, r.last_position, r.version
          INTO append.first_position, append.last_position, append.version
          FROM everfold.repeat_or_conflict(the_stream, expected, actual, new_ids, $3, $4) r;
        RETURN;
    END IF;

    done := everfold.announce();

    WITH stored AS (
        INSERT INTO everfold.events
            (stream_id, version, type, schema_version, data, metadata, id)
        SELECT the_stream, actual + u.n, u.type, coalesce(u.schema_version, 1), u.data,
               coalesce(u.metadata, '{}'), u.id
          FROM unnest($3, $4, $5, new_ids, $7)
               WITH ORDINALITY AS u(type, data, metadata, id, schema_version, n)
         ORDER BY u.n
        ON CONFLICT ON CONSTRAINT events_id_key DO NOTHING
        RETURNING position
    )
    SELECT count(*), min(position), max(position)
      INTO inserted, append.first_position, append.last_position
      FROM stored;
    append.version := actual + event_count;

    IF inserted < event_count THEN
        -- Known ids: a repeat stored nothing just now, and anything else is refused and undone.
        IF (SELECT count(DISTINCT i) FROM unnest(new_ids) i) < event_count THEN
            RAISE EXCEPTION 'append to stream "%" uses an event id twice', the_stream
                USING ERRCODE = 'EF004', HINT = 'give every event an id of its own';
        END IF;
        IF inserted > 0 THEN
            RAISE EXCEPTION
                'append to stream "%": % of % event ids are already stored, the others are new',
                the_stream, event_count - inserted, event_count
                USING ERRCODE = 'EF004',
                    HINT = 'a retry repeats the whole append with ids, types and data unchanged';
        END IF;
        SELECT r.first_position, r.last_position, r.version
          INTO append.first_position, append.last_position, append.version
          FROM everfold.find_repeat(the_stream, new_ids, $3, $4) r;
    END IF;
END $$;
