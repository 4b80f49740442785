-- Appends many members (one append each, to streams of their own or the same) in one call, each
-- with its own outcome. A member that cannot be stored leaves the others alone.
--
--   streams          the distinct streams
--   member_streams   per member: which of `streams` (from 1)
--   expected         per member: expected version, NULL for any
--   member_sizes     per member: how many events
--   types … schema_versions   per event, the members' events one after the other
--   wait             false: a stream locked by somebody else makes its members 'busy', and so does a
--                    key across streams that an inline projection has and somebody else holds
--   carries          inline generations in Rust that the caller applies, before it commits; NULL is
--                    refused: the caller found no transaction
--
-- Outcomes per member: 'stored', 'repeat', 'conflict' (versions = the actual one), 'busy', and
-- 'refused' (ids partly known, or known with other content).
--
-- `carried` is what the caller has to apply now, NULL if nothing: generation, position, generation,
-- position … , with the events at these positions as they are stored (some may be older: skips of
-- the same keys).
CREATE OR REPLACE FUNCTION everfold.append_group(
    streams text[], member_streams integer[], expected bigint[], member_sizes integer[],
    types text[], data jsonb[], metadata jsonb[], ids uuid[], schema_versions integer[],
    wait boolean, carries integer[] DEFAULT '{}',
    OUT outcomes text[], OUT first_positions bigint[], OUT last_positions bigint[],
    OUT versions bigint[], OUT messages text[],
    OUT carried bigint[],
    OUT event_positions bigint[], OUT event_streams text[], OUT event_versions bigint[],
    OUT event_types text[], OUT event_schema_versions integer[], OUT event_data jsonb[],
    OUT event_metadata jsonb[], OUT event_ids uuid[], OUT event_times timestamptz[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, everfold, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    member_count integer := cardinality(member_streams);
    locked boolean[];
    actual bigint[];
    done boolean;
    event_offset integer := 0;
    event_members integer[] := '{}';
    first_versions bigint[] := array_fill(NULL::bigint, ARRAY[cardinality(member_streams)]);
    offsets integer[] := array_fill(0, ARRAY[cardinality(member_streams)]);
    positions bigint[];
    stored integer := 0;
    current bigint;
    s integer;
    size integer;
    known uuid[];
    repeated record;
    inline integer[];
    held text[];
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        PERFORM everfold.refuse_append('', 0);
    END IF;
    IF (1 <= ALL (member_sizes)) IS NOT TRUE OR (1 <= ALL (member_streams)) IS NOT TRUE
        OR (cardinality(streams) >= ALL (member_streams)) IS NOT TRUE
        OR cardinality(expected) IS DISTINCT FROM member_count
        OR cardinality(member_sizes) IS DISTINCT FROM member_count
        OR cardinality(types) IS DISTINCT FROM cardinality(ids)
        OR cardinality(data) IS DISTINCT FROM cardinality(ids)
        OR cardinality(metadata) IS DISTINCT FROM cardinality(ids)
        OR cardinality(schema_versions) IS DISTINCT FROM cardinality(ids)
        OR wait IS NULL
    THEN
        RAISE EXCEPTION 'append_group: the arrays do not fit together'
            USING ERRCODE = 'EF003', HINT = 'use everfold.append_many';
    END IF;
    IF carries IS NULL THEN
        PERFORM everfold.refuse_without_transaction();
    END IF;
    outcomes := array_fill('stored'::text, ARRAY[member_count]);
    first_positions := array_fill(NULL::bigint, ARRAY[member_count]);
    last_positions := first_positions;
    versions := first_positions;
    messages := array_fill(NULL::text, ARRAY[member_count]);

    locked := everfold.enter_append_many(streams, wait);

    -- NULL marks a stream that somebody else holds.
    SELECT array_agg(CASE WHEN locked[u.n] THEN coalesce(v.version, 0) END ORDER BY u.n),
           ARRAY(SELECT CASE WHEN g.key_fields IS NULL THEN g.id ELSE -g.id END
                   FROM everfold.generations g
                  WHERE g.lifecycle = 'inline' AND g.status <> ALL ('{kept,retired,spare}'::text[])
                    AND (g.event_types IS NULL OR g.event_types && types)
                  ORDER BY g.id)
      INTO actual, inline
      FROM unnest(streams) WITH ORDINALITY AS u(stream_id, n)
      LEFT JOIN LATERAL (
          SELECT e.version FROM everfold.events e
           WHERE e.stream_id = u.stream_id ORDER BY e.version DESC LIMIT 1) v ON true;
    -- Each by itself: a plan that is made while the table is empty, and kept, still uses the index.
    SELECT array_agg(e.id) INTO known FROM unnest(ids) AS i(id)
     CROSS JOIN LATERAL (SELECT e.id FROM everfold.events e WHERE e.id = i.id LIMIT 1) e;

    FOR m IN 1 .. member_count LOOP
        s := member_streams[m];
        size := member_sizes[m];
        offsets[m] := event_offset;
        current := actual[s];
        FOR n IN event_offset + 1 .. event_offset + size LOOP
            event_members[n] := m;
        END LOOP;
        IF current IS NULL THEN
            outcomes[m] := 'busy';
        ELSE
            IF known IS NOT NULL AND ids[event_offset + 1 : event_offset + size] && known THEN
                BEGIN
                    SELECT * INTO repeated FROM everfold.find_repeat(streams[s],
                        ids[event_offset + 1 : event_offset + size],
                        types[event_offset + 1 : event_offset + size],
                        data[event_offset + 1 : event_offset + size]);
                    outcomes[m] := 'repeat';
                    first_positions[m] := repeated.first_position;
                    last_positions[m] := repeated.last_position;
                    versions[m] := repeated.version;
                EXCEPTION WHEN SQLSTATE 'EF004' THEN
                    outcomes[m] := 'refused';
                    messages[m] := SQLERRM;
                END;
            ELSIF expected[m] <> current AND (expected[m] <> -1 OR current = 0) THEN
                outcomes[m] := 'conflict';
                versions[m] := current;
            ELSE
                first_versions[m] := current + 1;
                versions[m] := current + size;
                actual[s] := current + size;
                stored := stored + 1;
            END IF;
        END IF;
        event_offset := event_offset + size;
    END LOOP;
    IF event_offset IS DISTINCT FROM cardinality(ids) THEN
        RAISE EXCEPTION 'append_group: % events for members that say %', cardinality(ids), event_offset
            USING ERRCODE = 'EF003';
    END IF;
    IF stored = 0 THEN
        RETURN;
    END IF;

    IF cardinality(inline) > 0 AND everfold.enter_inline(inline) THEN
        SELECT everfold.lock_inline_keys(inline, array_agg(streams[member_streams[u.member]]),
                   array_agg(u.type), array_agg(u.data), array_agg(u.metadata), wait)
          INTO held
          FROM unnest(event_members, types, data, metadata) AS u(member, type, data, metadata)
         WHERE first_versions[u.member] IS NOT NULL;
        IF held IS NOT NULL THEN
            -- A conflict may be with a version that is now not stored.
            FOR m IN 1 .. member_count LOOP
                IF streams[member_streams[m]] = ANY (held) AND outcomes[m] IN ('stored', 'conflict') THEN
                    outcomes[m] := 'busy';
                    first_versions[m] := NULL;
                    versions[m] := NULL;
                END IF;
            END LOOP;
            IF 'stored' <> ALL (outcomes) THEN
                RETURN;
            END IF;
        END IF;
    END IF;

    done := everfold.announce();

    -- Positions rise in the order of insertion, so the n-th smallest belongs to the n-th event.
    WITH inserted AS (
        INSERT INTO everfold.events
            (stream_id, version, type, schema_version, data, metadata, id)
        SELECT t.stream_id, first_versions[u.member] + u.n - 1 - offsets[u.member],
               u.type, u.schema_version, u.data, u.metadata, u.id
          FROM unnest(event_members, types, data, metadata, ids, schema_versions)
               WITH ORDINALITY AS u(member, type, data, metadata, id, schema_version, n)
          JOIN unnest(streams) WITH ORDINALITY AS t(stream_id, n) ON t.n = member_streams[u.member]
         WHERE first_versions[u.member] IS NOT NULL
         ORDER BY u.n
        RETURNING position
    )
    SELECT array_agg(position ORDER BY position) INTO positions FROM inserted;

    event_offset := 0;
    FOR m IN 1 .. member_count LOOP
        IF first_versions[m] IS NOT NULL THEN
            first_positions[m] := positions[event_offset + 1];
            event_offset := event_offset + member_sizes[m];
            last_positions[m] := positions[event_offset];
        END IF;
    END LOOP;

    IF cardinality(inline) > 0 THEN
        carried := everfold.apply_inline(inline, positions, carries);
        IF carried IS NOT NULL THEN
            SELECT * INTO event_positions, event_streams, event_versions, event_types,
                   event_schema_versions, event_data, event_metadata, event_ids, event_times
              FROM everfold.carried_events(carried);
        END IF;
    END IF;
END $$;

-- Appends to many streams in the caller's transaction, each member with its own outcome:
-- `[{"stream_id", "expected_version"?, "events": [...]}]`. One row a member, in their order;
-- `code` and `message` are NULL for a stored or repeated member and carry its error otherwise.
CREATE OR REPLACE FUNCTION everfold.append_many(appends jsonb)
RETURNS TABLE (member integer, stream_id text, outcome text, first_position bigint,
    last_position bigint, version bigint, code text, message text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, everfold, pg_temp AS $$
#variable_conflict use_column
DECLARE
    append jsonb;
    n bigint;
    names text[] := '{}';
    expecteds bigint[] := '{}';
    sizes integer[] := '{}';
    streams text[];
    flat record;
    result record;
BEGIN
    IF jsonb_typeof($1) IS DISTINCT FROM 'array' OR jsonb_array_length($1) NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'append_many takes a JSON array of 1 to 10000 appends'
            USING ERRCODE = 'EF003', HINT =
                'for example [{"stream_id": "cart-1", "expected_version": 0, "events": [...]}]';
    END IF;
    FOR append, n IN SELECT e, o FROM jsonb_array_elements($1) WITH ORDINALITY AS t(e, o) LOOP
        IF jsonb_typeof(append) <> 'object'
            OR jsonb_typeof(append -> 'stream_id') IS DISTINCT FROM 'string'
            OR coalesce(jsonb_typeof(append -> 'expected_version'), 'null') NOT IN ('number', 'null')
            OR (append ->> 'expected_version') !~ '^(-1|[0-9]{1,18})$'
            OR (append - 'stream_id' - 'expected_version' - 'events') <> '{}'
        THEN
            RAISE EXCEPTION 'append_many: member % is not {"stream_id", "expected_version"?, "events"}', n
                USING ERRCODE = 'EF003';
        END IF;
        IF octet_length(append ->> 'stream_id') NOT BETWEEN 1 AND 512 THEN
            PERFORM everfold.refuse_append(append ->> 'stream_id', 1);
        END IF;
        PERFORM everfold.check_json_events(append ->> 'stream_id', append -> 'events');
        PERFORM everfold.refuse_append(append ->> 'stream_id', jsonb_array_length(append -> 'events'));
        names := names || (append ->> 'stream_id');
        expecteds := expecteds || (append ->> 'expected_version')::bigint;
        sizes := sizes || jsonb_array_length(append -> 'events');
    END LOOP;
    SELECT array_agg(DISTINCT name) INTO streams FROM unnest(names) name;
    SELECT array_agg(e ->> 'type' ORDER BY m, o) AS types,
           array_agg(e -> 'data' ORDER BY m, o) AS data,
           array_agg(CASE jsonb_typeof(e -> 'metadata') WHEN 'object' THEN e -> 'metadata' ELSE '{}' END
               ORDER BY m, o) AS metadata,
           array_agg(coalesce((e ->> 'id')::uuid, everfold.uuid_v7()) ORDER BY m, o) AS ids,
           array_agg(coalesce((e ->> 'schema_version')::integer, 1) ORDER BY m, o) AS schema_versions
      INTO flat
      FROM jsonb_array_elements($1) WITH ORDINALITY AS t(a, m),
           jsonb_array_elements(a -> 'events') WITH ORDINALITY AS v(e, o);
    IF (SELECT count(DISTINCT i) FROM unnest(flat.ids) i) < cardinality(flat.ids) THEN
        RAISE EXCEPTION 'append_many uses an event id twice'
            USING ERRCODE = 'EF004', HINT = 'give every event an id of its own';
    END IF;
    SELECT * INTO result FROM everfold.append_group(streams,
        ARRAY(SELECT array_position(streams, name) FROM unnest(names) WITH ORDINALITY AS u(name, o)
               ORDER BY o),
        expecteds, sizes, flat.types, flat.data, flat.metadata, flat.ids, flat.schema_versions, true);
    RETURN QUERY
        SELECT u.n::integer, u.name, u.outcome, u.first_position, u.last_position, u.version,
               CASE u.outcome WHEN 'conflict' THEN 'EF001' WHEN 'refused' THEN 'EF004' END,
               CASE u.outcome WHEN 'conflict' THEN
                   format('version conflict on stream "%s": expected %s, actual %s', u.name,
                       expecteds[u.n], u.version)
                   ELSE u.message END
          FROM unnest(names, result.outcomes, result.first_positions, result.last_positions,
                   result.versions, result.messages)
               WITH ORDINALITY AS u(name, outcome, first_position, last_position, version, message, n)
         ORDER BY u.n;
END $$;
