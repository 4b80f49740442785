-- The locks of an append, each in one place. All are transaction scoped. Their keys are pairs of
-- integers, the first the OID of a table of ours (an index's changes when it is rebuilt), so that the
-- spaces cannot meet: `store` for the registry gate, `stream_snapshots` for streams, `events` for
-- announcements.
--
-- Those that every append calls are one expression in SQL, which the server puts in the place of the
-- call. They pin no search_path: that would prevent it, and costs time. Every name and operator says
-- its schema.

-- The registry gate, then the stream. With `wait` false a stream that somebody else holds is not
-- waited for; the answer says whether it was locked.
CREATE OR REPLACE FUNCTION everfold.enter_append(stream_id text, wait boolean) RETURNS boolean
LANGUAGE sql VOLATILE AS $$
    SELECT pg_catalog.pg_advisory_xact_lock_shared('everfold.store'::pg_catalog.regclass::pg_catalog.oid::int, 0)
               IS NOT NULL
       AND CASE WHEN $2
           THEN pg_catalog.pg_advisory_xact_lock(
                    'everfold.stream_snapshots'::pg_catalog.regclass::pg_catalog.oid::int,
                    pg_catalog.hashtext($1)) IS NOT NULL
           ELSE pg_catalog.pg_try_advisory_xact_lock(
                    'everfold.stream_snapshots'::pg_catalog.regclass::pg_catalog.oid::int,
                    pg_catalog.hashtext($1)) END
$$;

-- The registry gate, then many streams, in ascending order of their keys so that two callers cannot
-- deadlock. With `wait` false, streams that somebody else holds are left out: the answer says for
-- each stream whether it was locked.
CREATE OR REPLACE FUNCTION everfold.enter_append_many(stream_ids text[], wait boolean)
RETURNS boolean[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    locked boolean[] := pg_catalog.array_fill(true, ARRAY[pg_catalog.cardinality($1)]);
BEGIN
    IF pg_catalog.pg_advisory_xact_lock_shared('everfold.store'::pg_catalog.regclass::pg_catalog.oid::int, 0) IS NULL THEN
    END IF;
    IF $2 THEN
        PERFORM pg_catalog.pg_advisory_xact_lock(
                    'everfold.stream_snapshots'::pg_catalog.regclass::pg_catalog.oid::int, k.key)
           FROM (SELECT DISTINCT pg_catalog.hashtext(s) AS key FROM pg_catalog.unnest($1) s ORDER BY 1) k;
        RETURN locked;
    END IF;
    FOR n IN 1 .. pg_catalog.cardinality($1) LOOP
        locked[n] := pg_catalog.pg_try_advisory_xact_lock(
            'everfold.stream_snapshots'::pg_catalog.regclass::pg_catalog.oid::int, pg_catalog.hashtext($1[n]));
    END LOOP;
    RETURN locked;
END $$;

-- Says that this transaction may take any position after the last one handed out. In the
-- subtransaction that inserts, before its first position is drawn, and never remembered: see
-- docs/design.md, High-water mark.
CREATE OR REPLACE FUNCTION everfold.announce() RETURNS boolean
LANGUAGE sql VOLATILE AS $$
    SELECT pg_catalog.pg_advisory_xact_lock_shared('everfold.events'::pg_catalog.regclass::pg_catalog.oid::int,
        (coalesce(pg_catalog.pg_sequence_last_value('everfold.events_position_seq'), 0)
            OPERATOR(pg_catalog.&) 4294967295)::bit(32)::int)
        IS NOT NULL
$$;
