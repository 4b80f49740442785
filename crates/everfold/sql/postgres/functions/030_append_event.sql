-- Appends one event in the caller's transaction: the short path. With `wait` false, a stream that
-- another transaction is appending to is not waited for, and a key for a moment only: EF009.
--
-- Locks, all held to the end of the transaction: registry gate (shared), stream (exclusive), for
-- inline projections gates (shared) and keys (exclusive), announcement (shared). Their order and the
-- separate statements are the protocol of docs/design.md, Append: change nothing here without its
-- experiments.
--
-- It pins no search_path, which costs time in every call. Instead every name and operator in it says its schema; it/roles sets traps for those that do not.
CREATE OR REPLACE FUNCTION everfold.append_event(
    stream_id text, expected_version bigint, type text, data jsonb,
    metadata jsonb DEFAULT '{}', id uuid DEFAULT NULL, schema_version integer DEFAULT 1,
    wait boolean DEFAULT true,
    OUT first_position bigint, OUT last_position bigint, OUT version bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    the_stream ALIAS FOR $1;
    expected ALIAS FOR $2;
    new_id pg_catalog.uuid := coalesce($6, everfold.uuid_v7());
    actual bigint;
    done boolean;
    inline integer[];
    inline_applied bigint[];
BEGIN
    IF the_stream IS NULL OR pg_catalog.octet_length(the_stream) OPERATOR(pg_catalog.<) 1
        OR pg_catalog.octet_length(the_stream) OPERATOR(pg_catalog.>) 512
        OR pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) 'read committed'
    THEN
        PERFORM everfold.refuse_append(the_stream, 1);
    END IF;

    done := everfold.enter_append(the_stream, $8);

    -- A later statement than the locks: its snapshot sees every append that held them before, and
    -- every projection that was registered before.
    SELECT (SELECT e.version FROM everfold.events e
             WHERE e.stream_id OPERATOR(pg_catalog.=) the_stream ORDER BY e.version DESC LIMIT 1),
           ARRAY(SELECT CASE WHEN g.key_fields IS NULL THEN g.id ELSE OPERATOR(pg_catalog.-) g.id END
                   FROM everfold.generations g
                  WHERE g.lifecycle OPERATOR(pg_catalog.=) 'inline'
                    AND g.status OPERATOR(pg_catalog.<>) ALL ('{kept,retired}'::pg_catalog.text[])
                    AND (g.event_types IS NULL OR $3 OPERATOR(pg_catalog.=) ANY (g.event_types))
                  ORDER BY g.id)
      INTO actual, inline;
    actual := coalesce(actual, 0);

    IF expected OPERATOR(pg_catalog.<>) actual
        AND (expected OPERATOR(pg_catalog.<>) -1 OR actual OPERATOR(pg_catalog.=) 0)
    THEN
        SELECT r.first_position, r.last_position, r.version
          INTO append_event.first_position, append_event.last_position, append_event.version
          FROM everfold.repeat_or_conflict(the_stream, expected, actual,
                   ARRAY[new_id], ARRAY[$3], ARRAY[$4]) r;
        RETURN;
    END IF;

    IF pg_catalog.cardinality(inline) OPERATOR(pg_catalog.>) 0 AND everfold.enter_inline(inline) THEN
        IF everfold.lock_inline_keys(inline, ARRAY[the_stream], ARRAY[$3], ARRAY[$4], ARRAY[$5], $8) IS NOT NULL THEN
            PERFORM everfold.refuse_busy_key(the_stream);
        END IF;
    END IF;

    done := everfold.announce();

    append_event.version := actual OPERATOR(pg_catalog.+) 1;
    INSERT INTO everfold.events (stream_id, version, type, schema_version, data, metadata, id)
    VALUES (the_stream, append_event.version, $3, $7, $4, $5, new_id)
    ON CONFLICT ON CONSTRAINT events_id_key DO NOTHING
    RETURNING position INTO append_event.first_position;

    IF NOT FOUND THEN
        SELECT r.first_position, r.last_position, r.version
          INTO append_event.first_position, append_event.last_position, append_event.version
          FROM everfold.find_repeat(the_stream, ARRAY[new_id], ARRAY[$3], ARRAY[$4]) r;
        RETURN;
    END IF;
    append_event.last_position := append_event.first_position;

    IF pg_catalog.cardinality(inline) OPERATOR(pg_catalog.>) 0 THEN
        inline_applied := everfold.apply_inline(inline, ARRAY[append_event.first_position], NULL);
    END IF;
END $$;
