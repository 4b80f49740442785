-- What the high-water mark and the append rest on, checked when a store opens and by
-- `everfold doctor`. One row a check; where `safe` is false events could be lost.
CREATE OR REPLACE FUNCTION everfold.startup_checks()
RETURNS TABLE (name text, safe boolean, message text, hint text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, everfold, pg_temp AS $$
DECLARE
    sequence record;
    handed_out bigint;
    highest bigint;
BEGIN
    SELECT s.seqcache, s.seqincrement, s.seqcycle INTO sequence FROM pg_sequence s
     WHERE s.seqrelid = 'everfold.events_position_seq'::regclass;
    RETURN QUERY SELECT 'sequence',
        sequence.seqcache = 1 AND sequence.seqincrement = 1 AND NOT sequence.seqcycle,
        format('events_position_seq has cache %s, increment %s, cycle %s', sequence.seqcache,
            sequence.seqincrement, sequence.seqcycle),
        'ALTER SEQUENCE everfold.events_position_seq CACHE 1 INCREMENT 1 NO CYCLE';

    RETURN QUERY SELECT 'identity', a.attidentity = 'a',
        CASE a.attidentity WHEN 'a' THEN 'position is an identity, always generated'
            ELSE 'position is not always generated' END,
        'ALTER TABLE everfold.events ALTER position SET GENERATED ALWAYS'
        FROM pg_attribute a
       WHERE a.attrelid = 'everfold.events'::regclass AND a.attname = 'position';

    -- A standby reads the sequence's pre-logged value, and draws no positions anyway.
    IF NOT pg_is_in_recovery() THEN
        SELECT coalesce(max(e.position), 0) INTO highest FROM everfold.events e;
        handed_out := coalesce(pg_sequence_last_value('everfold.events_position_seq'), 0);
        RETURN QUERY SELECT 'positions', highest <= handed_out,
            format('highest position %s, sequence at %s', highest, handed_out),
            'stop all writers, then SELECT setval(''everfold.events_position_seq'', '
                '(SELECT max(position) FROM everfold.events))';
    END IF;

    RETURN QUERY SELECT 'append only', count(*) = 2,
        format('%s of 2 triggers refuse changes of events', count(*)),
        'ALTER TABLE everfold.events ENABLE ALWAYS TRIGGER events_refuse_change, '
            'ENABLE ALWAYS TRIGGER events_refuse_truncate'
        FROM pg_trigger t
       WHERE t.tgrelid = 'everfold.events'::regclass AND t.tgenabled = 'A'
         AND t.tgname IN ('events_refuse_change', 'events_refuse_truncate');

    RETURN QUERY SELECT 'isolation',
        current_setting('default_transaction_isolation') IN ('read committed', 'read uncommitted'),
        format('default_transaction_isolation is %s', current_setting('default_transaction_isolation')),
        format('ALTER ROLE %I SET default_transaction_isolation = ''read committed''', session_user);
END $$;
