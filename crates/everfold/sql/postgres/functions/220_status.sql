-- How far projections are, and waiting for them: for every language. Callers need no right on the
-- tables.

-- How far the projection is from a position: the position that its active generation has passed, what
-- it owes at or below the one asked for (open skips, dead letters, events held behind them), and its
-- status. No row if there is no such projection. An inline projection has passed every event that can
-- be seen: the mark is asked for only where the position asked for cannot.
CREATE OR REPLACE FUNCTION everfold.projection_reach(name text, namespace text, at_position bigint)
RETURNS TABLE ("position" bigint, owed bigint, status text, reason text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, everfold, pg_temp AS $$
#variable_conflict use_column
DECLARE
    g record;
BEGIN
    SELECT g.id, g.lifecycle, g.status, g.reason, g.id = p.active_generation AS is_active INTO g
      FROM everfold.projections p JOIN everfold.generations g ON g.projection = p.id
     WHERE p.name = $1 AND p.namespace = $2 AND g.status NOT IN ('retired', 'spare')
     ORDER BY g.id = p.active_generation DESC NULLS LAST, g.id DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    status := g.status;
    reason := g.reason;
    IF g.is_active IS NOT TRUE THEN
        position := 0;
        owed := 0;
        RETURN NEXT;
        RETURN;
    END IF;
    IF g.lifecycle = 'catch-up' THEN
        SELECT min(c.position) INTO position FROM everfold.checkpoints c WHERE c.generation = g.id;
    ELSIF EXISTS (SELECT FROM everfold.events e WHERE e.position = $3) THEN
        position := $3;
    ELSE
        position := everfold.high_water_mark();
    END IF;
    -- In a later statement than the position: what was put aside on the way there is seen.
    owed := (SELECT count(*) FROM everfold.skips s WHERE s.generation = g.id AND s.position <= $3)
          + (SELECT count(*) FROM everfold.dead_letters d WHERE d.generation = g.id AND d.position <= $3);
    RETURN NEXT;
END $$;

-- Waits until the projection has applied every event it wants up to a position, such as the one that
-- an append returned. True if it has; false if it has not within the time. In a transaction of its
-- own: a caller that has appended and not committed would wait for itself.
CREATE OR REPLACE FUNCTION everfold.wait_for(
    name text, at_position bigint, timeout_ms integer DEFAULT 10000, namespace text DEFAULT '')
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, everfold, pg_temp AS $$
DECLARE
    deadline timestamptz := clock_timestamp() + make_interval(secs => coalesce($3, 10000) / 1000.0);
    pause_ms double precision := 2;
    reach record;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'waiting for a projection needs READ COMMITTED, this transaction is %',
            upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'EF002', HINT = 'an older snapshot never sees the projection move';
    ELSIF $2 IS NULL THEN
        RAISE EXCEPTION 'no position to wait for projection "%"', $1
            USING ERRCODE = 'EF003', HINT = 'give the last position that an append returned';
    END IF;
    LOOP
        SELECT r.position, r.owed, r.status INTO reach FROM everfold.projection_reach($1, coalesce($4, ''), $2) r;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'there is no projection "%"%', $1,
                CASE WHEN coalesce($4, '') = '' THEN '' ELSE format(' in namespace "%s"', $4) END
                USING ERRCODE = 'EF020', HINT = 'see everfold.projection_status() for those there are';
        ELSIF reach.position >= $2 AND reach.owed = 0 AND reach.status <> 'building' THEN
            RETURN true;
        ELSIF clock_timestamp() >= deadline THEN
            RETURN false;
        END IF;
        PERFORM pg_sleep(greatest(0, least(pause_ms / 1000,
            extract(epoch FROM deadline - clock_timestamp()))));
        pause_ms := least(pause_ms * 1.5, 50);
    END LOOP;
END $$;

-- Every generation that is neither retired nor spare, with where it stands. `behind_events` counts up to 10,000.
CREATE OR REPLACE FUNCTION everfold.projection_status()
RETURNS TABLE (
    namespace text, name text, version integer, generation integer, kind text, lifecycle text,
    status text, reason text, status_since timestamptz, is_active boolean, shards integer,
    "position" bigint, behind_events bigint, behind_since timestamptz,
    open_skips bigint, oldest_skip timestamptz,
    dead_letters bigint, held_events bigint, oldest_dead_letter timestamptz)
-- A few rows; the server would guess thousands, and compile the query for them, which takes far longer.
LANGUAGE sql STABLE SECURITY DEFINER ROWS 20 SET search_path = pg_catalog, everfold, pg_temp
SET jit = off AS $$
    SELECT p.namespace, p.name, g.version, g.id, g.kind, g.lifecycle, g.status, g.reason, g.status_since,
           g.id = p.active_generation IS TRUE, g.shards, c.position,
           coalesce(b.events, 0),
           (SELECT e.recorded_at FROM everfold.events e WHERE e.position = b.first), s.open, s.oldest, d.failed, d.held, d.oldest
      FROM everfold.generations g
      JOIN everfold.projections p ON p.id = g.projection
     CROSS JOIN LATERAL (SELECT min(c.position) AS position
                           FROM everfold.checkpoints c WHERE c.generation = g.id) c
     CROSS JOIN LATERAL (SELECT count(*) AS open, min(s.skipped_at) AS oldest
                           FROM everfold.skips s WHERE s.generation = g.id) s
     CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE d.behind IS NULL) AS failed,
                                count(*) FILTER (WHERE d.behind IS NOT NULL) AS held,
                                min(d.created_at) FILTER (WHERE d.behind IS NULL) AS oldest
                           FROM everfold.dead_letters d WHERE d.generation = g.id) d
      -- An active inline one is behind by its skips only. That a type is the one is said in a way that
      -- only its index can be used for: a rare one would be looked for in all of the log otherwise.
      LEFT JOIN LATERAL (
            SELECT count(*) AS events, min(w.position) AS first
              FROM (SELECT e.position
                      FROM unnest(g.event_types) AS t(type)
                     CROSS JOIN LATERAL (
                           SELECT e.position FROM everfold.events e
                            WHERE (e.type, e.position) > (t.type, c.position) AND e.type <= t.type
                            ORDER BY e.type, e.position LIMIT 10000) e
                     WHERE g.event_types IS NOT NULL
                    UNION ALL
                    (SELECT e.position FROM everfold.events e
                      WHERE g.event_types IS NULL AND e.position > c.position
                      ORDER BY e.position LIMIT 10000)
                     ORDER BY 1 LIMIT 10000) w
           ) b ON g.lifecycle = 'catch-up' OR g.status IN ('kept', 'building', 'rebuilding')
     WHERE g.status NOT IN ('retired', 'spare')
     ORDER BY p.namespace, p.name, g.version, g.id
$$;
