-- The slow paths that all append functions share. Each is reached only when something is wrong
-- or repeated, so that the ordinary append pays for none of it.

-- Raises the error for an append whose stream id or number of events is out of bounds.
CREATE OR REPLACE FUNCTION everfold.refuse_append(stream_id text, event_count bigint)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, everfold, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'append needs READ COMMITTED, this transaction is %',
            upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'EF002',
                HINT = 'begin the transaction with ISOLATION LEVEL READ COMMITTED: above it '
                    'the snapshot may be older than a registration or a rebuild';
    ELSIF $1 IS NULL OR octet_length($1) NOT BETWEEN 1 AND 512 THEN
        RAISE EXCEPTION 'stream id has % bytes, allowed are 1 to 512',
            coalesce(octet_length($1)::text, 'no')
            USING ERRCODE = 'EF003';
    ELSIF coalesce($2, 0) NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'append to stream "%" has % events, allowed are 1 to 10000',
            $1, coalesce($2, 0)
            USING ERRCODE = 'EF003', HINT = CASE WHEN coalesce($2, 0) < 1 THEN 'give at least one event'
                ELSE 'split it into several appends' END;
    END IF;
END $$;

-- Was this append already stored? Returns its first result when every id is in this stream with
-- the same type and data, and no row when no id is known. Anything between is refused: an id
-- names one event for ever. Call it while the stream is locked.
CREATE OR REPLACE FUNCTION everfold.find_repeat(
    stream_id text, ids uuid[], types text[], data jsonb[],
    OUT first_position bigint, OUT last_position bigint, OUT version bigint)
RETURNS SETOF record
LANGUAGE plpgsql SET search_path = pg_catalog, everfold, pg_temp AS $$
#variable_conflict use_column
DECLARE
    known bigint;
    same bigint;
    other record;
BEGIN
    SELECT count(*),
           count(*) FILTER (WHERE e.stream_id = $1 AND e.type = u.type AND e.data = u.data),
           min(e.position), max(e.position), max(e.version)
      INTO known, same, find_repeat.first_position, find_repeat.last_position,
           find_repeat.version
      FROM unnest($2, $3, $4) AS u(id, type, data)
      JOIN everfold.events e ON e.id = u.id;
    IF known = 0 THEN
        RETURN;
    ELSIF same = cardinality($2) THEN
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT e.id, e.stream_id, e.version INTO other
      FROM unnest($2, $3, $4) AS u(id, type, data)
      JOIN everfold.events e ON e.id = u.id
     ORDER BY (e.stream_id = $1 AND e.type = u.type AND e.data = u.data), e.position
     LIMIT 1;
    RAISE EXCEPTION
        'event id % is already stored as version % of stream "%", and this append to stream "%" is '
        'not a repeat of that one (% of % ids known, % with the same stream, type and data)',
        other.id, other.version, other.stream_id, $1, known, cardinality($2), same
        USING ERRCODE = 'EF004',
            HINT = 'use a new id for a new event; a retry repeats ids, types and data unchanged';
END $$;

-- Ends an append whose expected version does not hold: the first result if it is a repeat,
-- otherwise EF001 with stream, expected and actual version, also in DETAIL as JSON.
CREATE OR REPLACE FUNCTION everfold.repeat_or_conflict(
    stream_id text, expected_version bigint, actual_version bigint,
    ids uuid[], types text[], data jsonb[],
    OUT first_position bigint, OUT last_position bigint, OUT version bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, everfold, pg_temp AS $$
BEGIN
    IF expected_version < -1 THEN
        RAISE EXCEPTION 'expected version % of stream "%" is not a version', expected_version, stream_id
            USING ERRCODE = 'EF003',
                HINT = 'NULL: any; 0: the stream must not exist; n: exactly n; -1: must exist';
    END IF;
    SELECT r.first_position, r.last_position, r.version
      INTO repeat_or_conflict.first_position, repeat_or_conflict.last_position,
           repeat_or_conflict.version
      FROM everfold.find_repeat(stream_id, ids, types, data) r;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'version conflict on stream "%": expected %, actual %', stream_id,
            CASE expected_version WHEN -1 THEN 'an existing stream' WHEN 0 THEN 'no stream'
                ELSE expected_version::text END,
            CASE actual_version WHEN 0 THEN 'no stream' ELSE actual_version::text END
            USING ERRCODE = 'EF001',
                DETAIL = jsonb_build_object('stream_id', stream_id,
                    'expected', expected_version, 'actual', actual_version)::text,
                HINT = 'read the stream again, decide again, append with its new version';
    END IF;
END $$;

-- Refuses an append that does not wait for a key that another transaction holds.
CREATE OR REPLACE FUNCTION everfold.refuse_busy_stream(stream_id text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, everfold, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'another transaction is appending to stream "%"', $1
        USING ERRCODE = 'EF009', HINT = 'try again when it has ended, or wait for it';
END $$;

-- For a caller that applies projections itself and whose call came without the transaction for it.
CREATE OR REPLACE FUNCTION everfold.refuse_without_transaction() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, everfold, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'the transaction in which the caller applies projections did not begin'
        USING ERRCODE = '25P01', HINT = 'nothing was stored; try again';
END $$;

-- For such a caller, where more than the new event is due.
CREATE OR REPLACE FUNCTION everfold.refuse_short_append() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, everfold, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'an inline projection has skips or dead letters, which this function does not settle'
        USING ERRCODE = 'EF011', HINT = 'use everfold.append_group';
END $$;

CREATE OR REPLACE FUNCTION everfold.refuse_busy_key(stream_id text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, everfold, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'another transaction has appended an event of the same key as one for stream "%"', $1
        USING ERRCODE = 'EF009', HINT = 'try again when it has ended, or wait for it';
END $$;
