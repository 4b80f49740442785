-- Inline projections inside an append: docs/design.md, Inline projections.
--
--   1. after the registry gate and the stream, one statement reads the stream's version and which
--      inline generations want these types (030, 040, 060, 100). Most stores have none: nothing more.
--   2. enter_inline: the gate of each, in the order of their ids, then the keys across streams.
--   3. announce and insert, as ever.
--   4. apply_inline: apply, or record that it was not done.
--
-- An append of one event (030, 035) does 2 in the statement of 1, and reads what 4 is to do in the
-- statement that inserts (inline_steps): fewer statements, in the same order.
--
-- Generations whose key is not the stream come with a negative id, so that an append for which
-- there are none need not ask for keys.
--
-- enter_inline and apply_inline are called by every append that meets an inline projection, from
-- functions that pin no search_path: every name and operator in them says its schema.

-- The gates of these generations, shared, in the order in which they are given: that of their ids.
-- Held to the end of the transaction, whether it will apply or skip. What the generations are is
-- read in a later statement (apply_inline, lock_inline_keys): the snapshot of this one may be older
-- than the gates. True if some have keys across streams, which are to be locked next.
CREATE OR REPLACE FUNCTION everfold.enter_inline(generations integer[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    generation integer;
    across_streams boolean := false;
BEGIN
    FOREACH generation IN ARRAY $1 LOOP
        IF pg_catalog.pg_advisory_xact_lock_shared(
            'everfold.generations'::pg_catalog.regclass::pg_catalog.oid::int, pg_catalog.abs(generation)) IS NULL
        THEN
        END IF;
        IF generation OPERATOR(pg_catalog.<) 0 THEN
            across_streams := true;
        END IF;
    END LOOP;
    RETURN across_streams;
END $$;

-- The events at these positions, in the order of the list. Each is looked up by itself, which is the
-- only plan there is: one that a session makes while the table is empty, and keeps, reads no more
-- than they need. The server puts the query in the place of the call.
CREATE OR REPLACE FUNCTION everfold.events_at(positions bigint[]) RETURNS SETOF everfold.events
LANGUAGE sql STABLE AS $$
    SELECT e.* FROM pg_catalog.unnest($1) AS p(at)
     CROSS JOIN LATERAL (SELECT * FROM everfold.events e WHERE e.position OPERATOR(pg_catalog.=) p.at LIMIT 1) e
$$;

-- The key of an event: the text of its fields, NULL where one is missing or null; the stream where
-- no fields are named. Several fields are a JSON array of texts. The same as Key::of of the library.
CREATE OR REPLACE FUNCTION everfold.key_of(
    fields text[], stream_id text, type text, data jsonb, metadata jsonb)
RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, everfold, pg_temp AS $$
DECLARE
    field text;
    path text[];
    value text;
    found text[] := '{}';
BEGIN
    IF $1 IS NULL THEN
        RETURN $2;
    END IF;
    FOREACH field IN ARRAY $1 LOOP
        path := string_to_array(field, '.');
        value := CASE path[1]
            WHEN 'stream_id' THEN $2
            WHEN 'type' THEN $3
            WHEN 'data' THEN $4 #>> path[2:]
            WHEN 'metadata' THEN $5 #>> path[2:]
        END;
        IF value IS NULL THEN
            RETURN NULL;
        END IF;
        found := found || value;
    END LOOP;
    RETURN CASE cardinality(found) WHEN 1 THEN found[1] ELSE array_to_json(found)::text END;
END $$;

-- Locks the keys of new events in those generations whose key is not the stream: exclusive, in the
-- order of the locks' keys, before any position is drawn. By appliers and skippers alike: two
-- streams with one key are then applied in the order of their positions. Parameters but the first
-- have one element an event.
--
-- With `wait` false, keys that somebody else holds are waited for during a moment only, all together:
-- the time that an append of theirs takes, not that of a transaction that stays open. The answer is
-- the streams that have such a key, NULL if there are none.
--
-- An event without a key is refused here where the policy is to stop. Otherwise its key is the
-- empty text, from here on.
CREATE OR REPLACE FUNCTION everfold.lock_inline_keys(
    generations integer[], stream_ids text[], types text[], data jsonb[], metadata jsonb[], wait boolean)
RETURNS text[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, everfold, pg_temp AS $$
DECLARE
    hashes integer[];
    hash integer;
    refused text;
    held integer[];
    until timestamptz := clock_timestamp() + interval '50 ms';
BEGIN
    SELECT array_agg(DISTINCT hashtext(w.id || ':' || coalesce(w.key, ''))),
           min(w.name) FILTER (WHERE w.key IS NULL AND w.on_error = 'stop' AND w.status = 'active')
      INTO hashes, refused
      FROM (SELECT g.id, p.name, g.on_error, g.status,
                   everfold.key_of(g.key_fields, u.stream_id, u.type, u.data, coalesce(u.metadata, '{}')) AS key
              FROM everfold.generations g
              JOIN everfold.projections p ON p.id = g.projection
             CROSS JOIN LATERAL unnest($2, $3, $4, $5) AS u(stream_id, type, data, metadata)
             WHERE -g.id = ANY ($1) AND g.status <> 'building'
               AND (g.event_types IS NULL OR u.type = ANY (g.event_types))) w;
    IF refused IS NOT NULL THEN
        RAISE EXCEPTION 'inline projection "%" refused the event: a field of its key (%) is missing or null',
            refused,
            (SELECT array_to_string(g.key_fields, ', ')
               FROM everfold.generations g JOIN everfold.projections p ON p.id = g.projection
              WHERE -g.id = ANY ($1) AND p.name = refused LIMIT 1)
            USING ERRCODE = 'EF010', DETAIL = jsonb_build_object('projection', refused)::text,
                HINT = 'the append was not stored; give the event the field, or change the projection';
    END IF;
    -- array_agg(DISTINCT) sorts.
    FOREACH hash IN ARRAY coalesce(hashes, '{}') LOOP
        IF wait THEN
            PERFORM pg_advisory_xact_lock('everfold.skips'::regclass::oid::int, hash);
        ELSIF NOT everfold.lock_inline_key_until(hash, until) THEN
            held := held || hash;
        END IF;
    END LOOP;
    IF held IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN ARRAY(SELECT DISTINCT u.stream_id
              FROM everfold.generations g
             CROSS JOIN LATERAL unnest($2, $3, $4, $5) AS u(stream_id, type, data, metadata)
             WHERE -g.id = ANY ($1) AND (g.event_types IS NULL OR u.type = ANY (g.event_types))
               AND hashtext(g.id || ':' || coalesce(everfold.key_of(g.key_fields, u.stream_id, u.type,
                       u.data, coalesce(u.metadata, '{}')), '')) = ANY (held));
END $$;

-- Locks a key unless somebody else holds it for longer than until then; whether it was locked.
CREATE OR REPLACE FUNCTION everfold.lock_inline_key_until(hash integer, until timestamptz)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, everfold, pg_temp AS $$
DECLARE
    limit_before text := current_setting('lock_timeout');
    patience integer;
BEGIN
    IF pg_try_advisory_xact_lock('everfold.skips'::regclass::oid::int, $1) THEN
        RETURN true;
    END IF;
    patience := ceil(extract(epoch FROM $2 - clock_timestamp()) * 1000);
    IF patience < 1 THEN
        RETURN false;
    END IF;
    PERFORM set_config('lock_timeout', patience || 'ms', true);
    PERFORM pg_advisory_xact_lock('everfold.skips'::regclass::oid::int, $1);
    PERFORM set_config('lock_timeout', limit_before, true);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- Applies new events to these generations, or records that it was not done. `carries` names the
-- generations in Rust that the caller applies itself, in this transaction: it gets what is theirs to
-- apply as generation, position, generation, position … in the order of positions for each.
--
-- Which function to call is data, read after the gate: a function that is replaced while appends
-- hold their locks would still run with its old body.
CREATE OR REPLACE FUNCTION everfold.apply_inline(
    generations integer[], positions bigint[], carries integer[])
RETURNS bigint[]
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    generation integer;
    g record;
    carried bigint[];
BEGIN
    FOREACH generation IN ARRAY $1 LOOP
        -- One by one: for a list the server would make a plan each time, which costs more than all
        -- the rest.
        generation := pg_catalog.abs(generation);
        SELECT g.id, g.kind, g.status, g.on_error, g.home, g.event_types,
               EXISTS (SELECT FROM everfold.skips s WHERE s.generation OPERATOR(pg_catalog.=) g.id)
            OR EXISTS (SELECT FROM everfold.dead_letters d WHERE d.generation OPERATOR(pg_catalog.=) g.id)
               AS owes
          INTO g
          FROM everfold.generations g WHERE g.id OPERATOR(pg_catalog.=) generation;
        IF g.kind OPERATOR(pg_catalog.=) 'sql' AND g.status OPERATOR(pg_catalog.=) 'active'
            AND g.on_error OPERATOR(pg_catalog.=) 'stop' AND NOT g.owes
        THEN
            EXECUTE pg_catalog.format('SELECT %I.apply($1)', g.home) USING positions;
        ELSIF g.kind OPERATOR(pg_catalog.<>) 'sql' AND g.status OPERATOR(pg_catalog.=) 'active'
            AND NOT g.owes AND g.id OPERATOR(pg_catalog.=) ANY ($3)
        THEN
            carried := pg_catalog.array_cat(carried, everfold.carry(g.id, g.event_types, positions));
        ELSIF g.status OPERATOR(pg_catalog.<>) ALL ('{building,kept,retired}'::pg_catalog.text[]) THEN
            carried := pg_catalog.array_cat(carried,
                everfold.apply_inline_carefully(g.id, positions, $3, g.owes));
        END IF;
    END LOOP;
    RETURN carried;
END $$;

-- The same for one event, as data: what is to be done in each of these generations, after its gate.
-- A step is a statement with the event as its parameter, or the number of the generation if it is
-- one that the caller applies itself. The server puts the query in the place of the call.
CREATE OR REPLACE FUNCTION everfold.inline_steps(inline integer[], carries integer[])
RETURNS TABLE (generation integer, step text)
LANGUAGE sql STABLE AS $$
    SELECT g.id,
           CASE WHEN g.status OPERATOR(pg_catalog.=) 'active' AND NOT o.owes
                     AND g.kind OPERATOR(pg_catalog.=) 'sql' AND g.on_error OPERATOR(pg_catalog.=) 'stop'
                THEN pg_catalog.format('SELECT %I.apply_event($1)', g.home)
                WHEN g.status OPERATOR(pg_catalog.=) 'active' AND g.kind OPERATOR(pg_catalog.<>) 'sql'
                     AND g.id OPERATOR(pg_catalog.=) ANY ($2)
                THEN CASE WHEN o.owes THEN 'SELECT everfold.refuse_short_append()' ELSE g.id::pg_catalog.text END
                ELSE pg_catalog.format('SELECT everfold.apply_inline_carefully(%s, ARRAY[($1).position], NULL, %L)',
                         g.id, o.owes) END
      FROM everfold.generations g
     CROSS JOIN LATERAL (SELECT
         EXISTS (SELECT FROM everfold.skips s WHERE s.generation OPERATOR(pg_catalog.=) g.id)
         OR EXISTS (SELECT FROM everfold.dead_letters d WHERE d.generation OPERATOR(pg_catalog.=) g.id)
         AS owes) o
     WHERE (g.id OPERATOR(pg_catalog.=) ANY ($1) OR (OPERATOR(pg_catalog.-) g.id) OPERATOR(pg_catalog.=) ANY ($1))
       AND g.status OPERATOR(pg_catalog.<>) ALL ('{building,kept,retired}'::pg_catalog.text[])
$$;

-- What a caller has to apply to a generation: those of the events that it wants, all of them where
-- no types are named.
CREATE OR REPLACE FUNCTION everfold.carry(generation integer, event_types text[], positions bigint[])
RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, everfold, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    wanted bigint[] := $3;
    carried bigint[];
BEGIN
    IF $2 IS NOT NULL THEN
        wanted := ARRAY(SELECT e.position FROM everfold.events_at($3) e WHERE e.type = ANY ($2));
    END IF;
    FOR n IN 1 .. cardinality(wanted) LOOP
        carried[2 * n - 1] := $1;
        carried[2 * n] := wanted[n];
    END LOOP;
    RETURN carried;
END $$;

-- The same for one generation, where more is to be done than to apply: another policy than to stop,
-- skips or dead letters that may be of these keys, a projection in Rust, or one that is not active.
-- `owes` is false if the generation has neither skips nor dead letters.
CREATE OR REPLACE FUNCTION everfold.apply_inline_carefully(
    generation integer, positions bigint[], carries integer[], owes boolean)
RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, everfold, pg_temp AS $$
#variable_conflict use_column
DECLARE
    -- More open skips of a key than this are left to the runner.
    help_max CONSTANT integer := 100;
    g everfold.generations;
    wanted bigint[];
    keys text[];
    waiting text[] := '{}';
    held text[] := '{}';
    behind bigint[] := '{}';
BEGIN
    SELECT * INTO g FROM everfold.generations WHERE id = $1;
    IF g.kind = 'sql' AND g.status = 'active' AND g.key_fields IS NULL AND NOT owes
        AND everfold.try_inline(g.home, $2)
    THEN
        RETURN NULL;
    END IF;
    SELECT array_agg(e.position ORDER BY e.position), array_agg(e.key ORDER BY e.position)
      INTO wanted, keys
      FROM (SELECT e.position,
                   coalesce(everfold.key_of(g.key_fields, e.stream_id, e.type, e.data, e.metadata),
                       -- One without a key has its own, so that no other waits for it.
                       'no key: ' || e.position) AS key
              FROM everfold.events_at($2) e
             WHERE g.event_types IS NULL OR e.type = ANY (g.event_types)) e;
    IF wanted IS NULL THEN
        RETURN NULL;
    ELSIF g.status <> 'active' OR (g.kind <> 'sql' AND g.id = ANY (coalesce($3, '{}')) IS NOT TRUE) THEN
        INSERT INTO everfold.skips (generation, position, key, reason)
        SELECT g.id, u.position, u.key,
               CASE g.status WHEN 'active' THEN 'not applied by this client' ELSE g.status END
          FROM unnest(wanted, keys) AS u(position, key);
        RETURN NULL;
    END IF;

    IF owes THEN
        -- Skips first: whoever is settling some of these keys is waited for, and what came of it is
        -- seen by the later statement on dead letters. Nobody adds any: stream or key is locked.
        SELECT coalesce(array_agg(k.key), '{}') INTO waiting
          FROM (SELECT DISTINCT u.key FROM unnest(keys) u(key)) k
         WHERE (SELECT count(*) FROM (SELECT FROM everfold.skips s
                 WHERE s.generation = g.id AND s.key = k.key LIMIT help_max + 1) n) > help_max;
        PERFORM s.position FROM everfold.skips s
          WHERE s.generation = g.id AND s.key = ANY (keys) AND s.key <> ALL (waiting)
          ORDER BY s.position FOR UPDATE;
        -- The failed event is locked until this append has ended: whoever tries it again sees all
        -- that waits behind it, or we do not see it any more.
        SELECT coalesce(array_agg(d.key), '{}'), coalesce(array_agg(d.position), '{}')
          INTO held, behind
          FROM (SELECT d.key, d.position FROM everfold.dead_letters d
                 WHERE d.generation = g.id AND d.key = ANY (keys) AND d.behind IS NULL
                 ORDER BY d.position FOR KEY SHARE) d;
        waiting := waiting || ARRAY(SELECT DISTINCT s.key FROM everfold.skips s
                                     WHERE s.generation = g.id AND s.key = ANY (held));
        INSERT INTO everfold.skips (generation, position, key, reason)
        SELECT g.id, u.position, u.key, 'behind open skips'
          FROM unnest(wanted, keys) AS u(position, key) WHERE u.key = ANY (waiting);
        INSERT INTO everfold.dead_letters (generation, position, key, behind)
        SELECT g.id, u.position, u.key, behind[array_position(held, u.key)]
          FROM unnest(wanted, keys) AS u(position, key)
         WHERE u.key = ANY (held) AND u.key <> ALL (waiting);

        WITH own AS (
            SELECT u.position, u.key FROM unnest(wanted, keys) AS u(position, key)
             WHERE u.key <> ALL (waiting) AND u.key <> ALL (held)
        ), taken AS (
            DELETE FROM everfold.skips s WHERE s.generation = g.id AND s.key IN (SELECT o.key FROM own o)
            RETURNING s.position, s.key, s.reason
        ), settled AS (
            INSERT INTO everfold.system_messages (generation, kind, position, key, actor, message)
            SELECT g.id, 'skip-settled', t.position, t.key, 'append', t.reason FROM taken t ORDER BY t.position
        ), due AS (
            SELECT o.position, o.key FROM own o UNION ALL SELECT t.position, t.key FROM taken t
        )
        SELECT array_agg(d.position ORDER BY d.position), array_agg(d.key ORDER BY d.position)
          INTO wanted, keys FROM due d;
        IF wanted IS NULL THEN
            RETURN NULL;
        END IF;
    END IF;

    IF g.kind <> 'sql' THEN
        RETURN everfold.carry(g.id, NULL, wanted);
    ELSIF g.on_error = 'stop' THEN
        EXECUTE format('SELECT %I.apply($1)', g.home) USING wanted;
    ELSE
        PERFORM everfold.apply_inline_or_give_up(g, wanted, keys);
    END IF;
    RETURN NULL;
END $$;

-- Whether an error is the database's trouble, which passes, and not that of an event.
CREATE OR REPLACE FUNCTION everfold.is_transient(code text) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, everfold, pg_temp AS $$
    SELECT left($1, 2) IN ('40', '53', '57', '58') OR $1 IN ('55P03', '55006')
$$;

-- Whether an error says that the read model is not as it was made: a table, a function or a right is
-- gone. No event is to blame, so none is given up for it, whatever the policy is.
--
-- All of class 42 (names, rights, types of expressions) but what is about the session and not about the
-- read model: a prepared statement or a cursor that exists already (42P05, 42P03), which a pooler in the
-- way causes. Statements of a projection are fixed texts, so that their names and types cannot depend on
-- an event; values that cannot be cast are class 22.
CREATE OR REPLACE FUNCTION everfold.is_broken(code text) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, everfold, pg_temp AS $$
    SELECT left($1, 2) = '42' AND $1 NOT IN ('42P03', '42P05') OR $1 = '3F000'
$$;

-- Applies events to an SQL generation, or leaves no trace and returns false if one of them is
-- refused. What is not the events' fault, but the database's trouble or a broken read model, is
-- raised on.
CREATE OR REPLACE FUNCTION everfold.try_inline(home text, positions bigint[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, everfold, pg_temp AS $$
BEGIN
    EXECUTE format('SELECT %I.apply($1)', home) USING positions;
    RETURN true;
EXCEPTION WHEN OTHERS THEN
    IF everfold.is_transient(SQLSTATE) OR everfold.is_broken(SQLSTATE) THEN
        RAISE;
    END IF;
    RETURN false;
END $$;

-- Applies events to an SQL generation whose policy is not to stop: all at once, and if that fails,
-- one by one. The event that fails is put aside, or left out for good.
CREATE OR REPLACE FUNCTION everfold.apply_inline_or_give_up(
    g everfold.generations, positions bigint[], keys text[])
RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, everfold, pg_temp AS $$
DECLARE
    without_key bigint[] := '{}';
    held text[] := '{}';
    behind bigint[] := '{}';
    said text;
BEGIN
    IF g.key_fields IS NOT NULL THEN
        without_key := ARRAY(SELECT e.position FROM everfold.events_at(positions) e
            WHERE everfold.key_of(g.key_fields, e.stream_id, e.type, e.data, e.metadata) IS NULL);
    END IF;
    IF without_key = '{}' AND everfold.try_inline(g.home, positions) THEN
        RETURN;
    END IF;
    FOR n IN 1 .. cardinality(positions) LOOP
        IF keys[n] = ANY (held) THEN
            INSERT INTO everfold.dead_letters (generation, position, key, behind)
            VALUES (g.id, positions[n], keys[n], behind[array_position(held, keys[n])]);
            CONTINUE;
        END IF;
        BEGIN
            IF positions[n] = ANY (without_key) THEN
                RAISE EXCEPTION 'a field of its key (%) is missing or null', array_to_string(g.key_fields, ', ');
            END IF;
            EXECUTE format('SELECT %I.apply($1)', g.home) USING ARRAY[positions[n]];
        EXCEPTION WHEN OTHERS THEN
            IF everfold.is_transient(SQLSTATE) OR everfold.is_broken(SQLSTATE) THEN
                RAISE;
            END IF;
            GET STACKED DIAGNOSTICS said = PG_EXCEPTION_CONTEXT;
            -- The lines of the function are those of the file.
            said := coalesce(coalesce(g.definition ->> 'apply_file', 'apply.sql') || ':'
                    || substring(said FROM '[.]apply[(]bigint\[\][)] line (\d+)') || ': ', '')
                || SQLERRM;
            IF g.on_error = 'dead-letter' THEN
                held := held || keys[n];
                behind := behind || positions[n];
                INSERT INTO everfold.dead_letters (generation, position, key, error, attempts, tried_at)
                VALUES (g.id, positions[n], keys[n], said, 1, clock_timestamp());
            END IF;
            INSERT INTO everfold.system_messages (generation, kind, position, key, actor, message)
            SELECT g.id, CASE g.on_error WHEN 'skip' THEN 'skipped' ELSE 'dead-letter' END,
                   positions[n], keys[n], 'append',
                   format('event at position %s ("%s", stream "%s"): %s', e.position, e.type, e.stream_id, said)
              FROM everfold.events e WHERE e.position = positions[n];
        END;
    END LOOP;
END $$;

-- The events that a caller has to apply, as they are stored, in the order of their positions.
CREATE OR REPLACE FUNCTION everfold.carried_events(carried bigint[],
    OUT positions bigint[], OUT stream_ids text[], OUT versions bigint[], OUT types text[],
    OUT schema_versions integer[], OUT data jsonb[], OUT metadata jsonb[], OUT ids uuid[],
    OUT times timestamptz[])
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, everfold, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    wanted bigint[];
BEGIN
    IF cardinality($1) = 2 THEN
        wanted := $1[2:2];
    ELSE
        wanted := ARRAY(SELECT DISTINCT $1[2 * n] FROM generate_series(1, cardinality($1) / 2) n ORDER BY 1);
    END IF;
    SELECT array_agg(e.position), array_agg(e.stream_id::text), array_agg(e.version),
           array_agg(e.type::text), array_agg(e.schema_version), array_agg(e.data),
           array_agg(e.metadata), array_agg(e.id), array_agg(e.recorded_at)
      INTO positions, stream_ids, versions, types, schema_versions, data, metadata, ids, times
      FROM everfold.events_at(wanted) e;
END $$;

-- Records what a client could not apply to the inline projections that it carries: dead letters, the
-- events behind them, and a message for each event that failed. Parameters have one element an
-- event: `behind` is NULL for one that failed, `errors` for one that waits, `left_out` says that it
-- is given up for good.
CREATE OR REPLACE FUNCTION everfold.give_up_inline(generations integer[], positions bigint[],
    keys text[], behind bigint[], errors text[], left_out boolean[])
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, everfold, pg_temp AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO everfold.dead_letters (generation, position, key, behind, error, attempts, tried_at)
    SELECT u.generation, u.position, u.key, u.behind, u.error, CASE WHEN u.behind IS NULL THEN 1 ELSE 0 END,
           CASE WHEN u.behind IS NULL THEN clock_timestamp() END
      FROM unnest($1, $2, $3, $4, $5, $6) AS u(generation, position, key, behind, error, left_out)
      JOIN everfold.generations g ON g.id = u.generation AND g.lifecycle = 'inline' AND g.kind <> 'sql'
     WHERE NOT u.left_out;
    INSERT INTO everfold.system_messages (generation, kind, position, key, actor, message)
    SELECT u.generation, CASE WHEN u.left_out THEN 'skipped' ELSE 'dead-letter' END, u.position, u.key,
           'append', format('event at position %s ("%s", stream "%s"): %s', e.position, e.type, e.stream_id, u.error)
      FROM unnest($1, $2, $3, $4, $5, $6) AS u(generation, position, key, behind, error, left_out)
      JOIN everfold.generations g ON g.id = u.generation AND g.lifecycle = 'inline' AND g.kind <> 'sql'
      JOIN everfold.events e ON e.position = u.position
     WHERE u.behind IS NULL
     ORDER BY u.position;
END $$;
