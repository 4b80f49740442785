-- The exact high-water mark: every position at or below it is visible to the NEXT statement, or
-- will never exist. Call it in a statement of its own and read events up to it in a later one.
--
-- The order matters: first the highest position handed out, then the appends in flight (each
-- announced the last position before its own), then the highest visible position, without which
-- a mark could outlive a crash of the server. On a standby: the mark that the primary published.
CREATE OR REPLACE FUNCTION everfold.high_water_mark() RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, everfold, pg_temp AS $$
DECLARE
    handed_out bigint;
    announced bigint;
    visible bigint;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'the high-water mark needs READ COMMITTED, this transaction is %',
            upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'EF002', HINT =
                'an older snapshot would not see all events up to the mark';
    END IF;
    IF pg_is_in_recovery() THEN
        SELECT p.position INTO visible FROM everfold.published_mark p;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'no high-water mark has been published for standbys'
                USING ERRCODE = 'EF006', HINT =
                    'publish it on the primary: SELECT everfold.publish_high_water_mark()';
        END IF;
        RETURN visible;
    END IF;

    handed_out := coalesce(pg_sequence_last_value('everfold.events_position_seq'), 0);
    -- A lock key holds the low 32 bits; the signed distance from handed_out gives the rest.
    SELECT min(handed_out
               + ((l.objid::bigint - (handed_out & 4294967295) + 6442450944) % 4294967296 - 2147483648))
      INTO announced
      FROM pg_locks l
     WHERE l.locktype = 'advisory' AND l.objsubid = 2
       AND l.classid = 'everfold.events'::regclass::oid
       AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
    SELECT coalesce(max(e.position), 0) INTO visible FROM everfold.events e;
    -- A foreign lock in our space can only hold the mark, never make nonsense of it.
    RETURN greatest(0, least(handed_out, announced, visible));
END $$;

-- Publishes the mark in a row, for standbys, and returns it. It never moves back: positions at or
-- below an earlier mark stay decided.
CREATE OR REPLACE FUNCTION everfold.publish_high_water_mark() RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, everfold, pg_temp AS $$
DECLARE
    mark bigint := everfold.high_water_mark();
BEGIN
    INSERT INTO everfold.published_mark AS p (position) VALUES (mark)
    ON CONFLICT (singleton) DO UPDATE SET position = EXCLUDED.position, published_at = clock_timestamp()
     WHERE p.position < EXCLUDED.position;
    RETURN mark;
END $$;

-- Who holds the mark back: one row for each append in flight, the lowest first. Prepared
-- transactions have no pid; their name stands in `prepared`.
CREATE OR REPLACE FUNCTION everfold.high_water_mark_holders()
RETURNS TABLE (announced bigint, pid integer, prepared text, application text, username text,
    client text, state text, since timestamptz, query text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, everfold, pg_temp AS $$
DECLARE
    handed_out bigint := coalesce(pg_sequence_last_value('everfold.events_position_seq'), 0);
BEGIN
    RETURN QUERY
        SELECT handed_out
                 + ((l.objid::bigint - (handed_out & 4294967295) + 6442450944) % 4294967296 - 2147483648),
               l.pid,
               x.gid,
               a.application_name, a.usename::text,
               coalesce(a.client_addr::text, CASE WHEN a.pid IS NOT NULL THEN 'local' END), a.state,
               coalesce(a.xact_start, x.prepared),
               a.query
          FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
          -- A prepared transaction has no session, but a lock on its own number.
          LEFT JOIN LATERAL (SELECT x.gid, x.prepared
                 FROM pg_locks t JOIN pg_prepared_xacts x ON x.transaction = t.transactionid
                WHERE l.pid IS NULL AND t.pid IS NULL AND t.locktype = 'transactionid'
                  AND t.virtualtransaction = l.virtualtransaction) x ON true
         WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
           AND l.classid = 'everfold.events'::regclass::oid
           AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
         ORDER BY 1, 8;
END $$;
