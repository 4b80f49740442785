-- Import, one bounded chunk a transaction: stage_import, COPY into the staging table, then
-- import_chunk. Positions are drawn as in every append, never named.

-- Makes the session's staging table, which nobody else can see and every commit empties, and lets
-- the caller COPY into it. Takes no locks that anybody waits for: the next chunk can be staged while
-- one is being imported.
CREATE OR REPLACE FUNCTION everfold.stage_import() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, everfold, pg_temp AS $$
BEGIN
    IF to_regclass('pg_temp.everfold_import') IS NULL THEN
        CREATE TEMPORARY TABLE everfold_import (
            line bigint NOT NULL, stream_id text COLLATE "C" NOT NULL, version bigint,
            type text NOT NULL, schema_version integer NOT NULL, data jsonb NOT NULL,
            metadata jsonb NOT NULL, id uuid NOT NULL, recorded_at timestamptz
        ) ON COMMIT DELETE ROWS;
        -- Not compressed, so that the limits on sizes see what they see in every append.
        ALTER TABLE pg_temp.everfold_import ALTER data SET STORAGE EXTERNAL,
            ALTER metadata SET STORAGE EXTERNAL;
        GRANT INSERT ON pg_temp.everfold_import TO PUBLIC;
    END IF;
END $$;

-- Raises the error for the first staged line whose id cannot be taken, and unstages repeats of
-- events that are stored already. Returns how many those were.
CREATE OR REPLACE FUNCTION everfold.unstage_repeats() RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, everfold, pg_temp AS $$
DECLARE
    bad record;
    repeated bigint;
BEGIN
    SELECT i.line, i.id, e.stream_id, e.version INTO bad
      FROM pg_temp.everfold_import i JOIN everfold.events e ON e.id = i.id
     WHERE (e.stream_id, e.type, e.data) IS DISTINCT FROM (i.stream_id, i.type, i.data)
     ORDER BY i.line LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION
            'line %: event id % is already stored as version % of stream "%", with other content',
            bad.line, bad.id, bad.version, bad.stream_id
            USING ERRCODE = 'EF004', DETAIL = jsonb_build_object('line', bad.line)::text;
    END IF;
    SELECT d.line, d.id INTO bad
      FROM (SELECT i.line, i.id, row_number() OVER (PARTITION BY i.id ORDER BY i.line) AS n
              FROM pg_temp.everfold_import i) d
     WHERE d.n > 1 ORDER BY d.line LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'line %: event id % stands in an earlier line too', bad.line, bad.id
            USING ERRCODE = 'EF004', DETAIL = jsonb_build_object('line', bad.line)::text;
    END IF;
    DELETE FROM pg_temp.everfold_import i USING everfold.events e WHERE e.id = i.id;
    GET DIAGNOSTICS repeated = ROW_COUNT;
    RETURN repeated;
END $$;

-- Appends the staged events in the order of their lines and moves the import's progress, if that
-- still stands where the caller thinks. A line that names its version must get just that one.
--
-- `careful` looks every id up first and leaves out repeats. Without it, which is faster, a chunk that
-- holds known ids breaks the constraint events_id_key: roll back and stage it again with `careful`.
CREATE OR REPLACE FUNCTION everfold.import_chunk(
    name text, from_lines bigint, to_lines bigint, to_bytes bigint, last_line_hash text,
    careful boolean, OUT stored bigint, OUT repeated bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, everfold, pg_temp AS $$
#variable_conflict use_column
DECLARE
    bad_line bigint;
    locked boolean[];
    done boolean;
    held text[];
    inline integer[];
    positions bigint[];
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        PERFORM everfold.refuse_append('', 1);
    END IF;
    -- A caller could have put something else there, to be read with the rights of this function.
    IF NOT EXISTS (SELECT FROM pg_class c
                    WHERE c.oid = to_regclass('pg_temp.everfold_import') AND c.relkind = 'r'
                      AND c.relowner = (SELECT r.oid FROM pg_roles r WHERE r.rolname = current_user))
    THEN
        RAISE EXCEPTION 'pg_temp.everfold_import is not the table that everfold.stage_import makes'
            USING ERRCODE = 'EF003', HINT = 'drop it and call everfold.stage_import';
    END IF;
    SELECT min(i.line) INTO bad_line FROM pg_temp.everfold_import i
     WHERE NOT isfinite(i.recorded_at)
        OR extract(epoch FROM i.recorded_at) NOT BETWEEN -62135596800 AND 253370764799;
    IF bad_line IS NOT NULL THEN
        RAISE EXCEPTION 'line %: recorded_at is not a time of the years 1 to 9998', bad_line
            USING ERRCODE = 'EF003', DETAIL = jsonb_build_object('line', bad_line)::text;
    END IF;
    INSERT INTO everfold.imports AS i (name, lines, bytes, last_line_hash) VALUES ($1, 0, 0, '')
        ON CONFLICT ON CONSTRAINT imports_pkey DO NOTHING;
    UPDATE everfold.imports i
       SET lines = $3, bytes = $4, last_line_hash = $5, updated_at = clock_timestamp()
     WHERE i.name = $1 AND i.lines = $2;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'import "%" is no longer at line %: another process imports it too', $1, $2
            USING ERRCODE = 'EF007', HINT = 'let one of them finish, then run the import again';
    END IF;

    locked := everfold.enter_append_many(
        ARRAY(SELECT DISTINCT i.stream_id FROM pg_temp.everfold_import i), true);
    repeated := CASE WHEN careful THEN everfold.unstage_repeats() ELSE 0 END;

    SELECT coalesce(array_agg(CASE WHEN g.key_fields IS NULL THEN g.id ELSE -g.id END ORDER BY g.id), '{}')
      INTO inline FROM everfold.generations g
     WHERE g.lifecycle = 'inline' AND g.status <> ALL ('{kept,retired,spare}'::text[])
       AND (g.event_types IS NULL
            OR EXISTS (SELECT FROM pg_temp.everfold_import i WHERE i.type = ANY (g.event_types)));
    IF cardinality(inline) > 0 AND everfold.enter_inline(inline) THEN
        SELECT everfold.lock_inline_keys(inline, array_agg(i.stream_id), array_agg(i.type),
                   array_agg(i.data), array_agg(i.metadata), true)
          INTO held FROM pg_temp.everfold_import i;
    END IF;

    done := everfold.announce();
    WITH streams AS MATERIALIZED (
        SELECT s.stream_id, coalesce((
                   SELECT e.version FROM everfold.events e
                    WHERE e.stream_id = s.stream_id ORDER BY e.version DESC LIMIT 1), 0) AS actual
          FROM (SELECT DISTINCT d.stream_id FROM pg_temp.everfold_import d) s
    ), numbered AS MATERIALIZED (
        SELECT i.*, s.actual + row_number() OVER (PARTITION BY i.stream_id ORDER BY i.line) AS given
          FROM pg_temp.everfold_import i JOIN streams s USING (stream_id)
    ), inserted AS (
        INSERT INTO everfold.events
            (stream_id, version, type, schema_version, data, metadata, id, recorded_at)
        SELECT n.stream_id, n.given, n.type, n.schema_version, n.data, n.metadata, n.id,
               coalesce(n.recorded_at, clock_timestamp())
          FROM numbered n
         ORDER BY n.line
        RETURNING position
    )
    SELECT (SELECT count(*) FROM inserted),
           (SELECT min(n.line) FROM numbered n WHERE n.version <> n.given),
           (SELECT array_agg(position) FROM inserted)
      INTO stored, bad_line, positions;

    IF bad_line IS NOT NULL THEN
        RAISE EXCEPTION 'line %: the event names another version than its stream in this store gives it',
            bad_line
            USING ERRCODE = 'EF001', DETAIL = jsonb_build_object('line', bad_line)::text,
                HINT = 'import whole streams into a store that does not have them, or renumber';
    END IF;
    IF cardinality(inline) > 0 AND positions IS NOT NULL THEN
        positions := everfold.apply_inline(inline, positions, NULL);
    END IF;
END $$;

-- How far the import of this name has come; zeros if it has not begun.
CREATE OR REPLACE FUNCTION everfold.import_progress(
    name text, OUT lines bigint, OUT bytes bigint, OUT last_line_hash text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, everfold, pg_temp AS $$
#variable_conflict use_column
BEGIN
    SELECT i.lines, i.bytes, i.last_line_hash
      INTO import_progress.lines, import_progress.bytes, import_progress.last_line_hash
      FROM everfold.imports i WHERE i.name = $1;
    IF NOT FOUND THEN
        import_progress.lines := 0;
        import_progress.bytes := 0;
        import_progress.last_line_hash := '';
    END IF;
END $$;
