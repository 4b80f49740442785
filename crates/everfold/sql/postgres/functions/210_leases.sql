-- Leases: which worker runs which shard. A lease is the checkpoint's row with its owner, an epoch that
-- every taker raises, and an end by the database's clock. Whoever has an older epoch can move nothing.
--
-- Nothing here waits for anybody: rows that are locked are left for the next tick. A shard whose row
-- is locked is in the middle of a batch, and its owner lives.

-- Generations whose shards are to be run: fed behind the appends, or inline with skips to be settled.
-- Inline ones that are being built are left to rebuilds, and so are those that are filled in place: only
-- the rebuild knows what they hold. So are those of projections that readers see no version of.
CREATE OR REPLACE FUNCTION everfold.is_run(status text, lifecycle text, projection integer) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT $1 OPERATOR(pg_catalog.=) ANY ('{active,kept}'::pg_catalog.text[])
        OR ($1 OPERATOR(pg_catalog.=) 'building' AND $2 OPERATOR(pg_catalog.=) 'catch-up'
            AND EXISTS (SELECT FROM everfold.projections p
                         WHERE p.id OPERATOR(pg_catalog.=) $3 AND p.active_generation IS NOT NULL))
$$;

-- Whether a rebuild that has not switched readers over yet works on a generation: its shards are the
-- rebuild's, whoever works on it.
CREATE OR REPLACE FUNCTION everfold.is_rebuilt(generation integer) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, everfold, pg_temp AS $$
    SELECT EXISTS (SELECT FROM everfold.rebuilds r
                    WHERE r.target = $1 AND r.finished_at IS NULL AND r.flipped_at IS NULL)
$$;

-- A worker's sign of life: its row and its leases are prolonged, workers that died are forgotten, what
-- it has beyond its share is given up, and free or expired shards are taken up to its share. Returns
-- all that it may run now.
--
-- Shares are even: generations that the same live workers carry are one pool, and its shards are
-- divided among those workers so that no two differ by more than one.
--
-- What a worker cannot go on with (stuck: generations whose code there does not come back) is left to
-- the others, if another live one carries it: as if this one did not.
--
-- A shard that is to be given up and is in the middle of a batch is left out of the answer, so that
-- its owner runs no further batch, and is given up by the next tick.
CREATE OR REPLACE FUNCTION everfold.tick(
    worker uuid, name text, carries integer[], ttl_ms integer, stuck integer[] DEFAULT '{}')
RETURNS TABLE (generation integer, shard integer, epoch bigint, "position" bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, everfold, pg_temp AS $$
#variable_conflict use_column
DECLARE
    lease_end timestamptz := clock_timestamp() + make_interval(secs => $4 / 1000.0);
    pool record;
    surplus integer[] := '{}';
    surplus_shards integer[] := '{}';
BEGIN
    IF stuck <> '{}' THEN
        carries := ARRAY(
            SELECT c.id FROM unnest($3) AS c(id)
             WHERE c.id <> ALL ($5)
                OR NOT EXISTS (SELECT FROM everfold.workers w
                                WHERE w.id <> $1 AND c.id = ANY (w.carries)
                                  AND w.expires_at >= clock_timestamp()));
    END IF;
    INSERT INTO everfold.workers AS w (id, name, expires_at, carries) VALUES ($1, $2, lease_end, $3)
    ON CONFLICT (id) DO UPDATE SET name = $2, expires_at = lease_end, carries = $3;

    DELETE FROM everfold.workers d
     WHERE d.id IN (SELECT w.id FROM everfold.workers w
                     WHERE w.expires_at < clock_timestamp() AND w.id <> $1
                       FOR UPDATE SKIP LOCKED);

    -- What is no longer run, or no longer carried, is let go at once.
    UPDATE everfold.checkpoints u SET owner = NULL, expires_at = NULL
      FROM (SELECT c.generation, c.shard FROM everfold.checkpoints c
              JOIN everfold.generations g ON g.id = c.generation
             WHERE c.owner = $1 AND NOT (g.id = ANY ($3) AND everfold.is_run(g.status, g.lifecycle, g.projection))
               AND NOT everfold.is_rebuilt(g.id)
               FOR UPDATE OF c SKIP LOCKED) mine
     WHERE u.generation = mine.generation AND u.shard = mine.shard;

    UPDATE everfold.checkpoints u SET expires_at = lease_end
      FROM (SELECT c.generation, c.shard FROM everfold.checkpoints c
             WHERE c.owner = $1 FOR UPDATE SKIP LOCKED) mine
     WHERE u.generation = mine.generation AND u.shard = mine.shard;

    FOR pool IN
        WITH carried AS (
            SELECT g.id, g.shards, w.workers
              FROM everfold.generations g
             CROSS JOIN LATERAL (SELECT array_agg(w.id ORDER BY w.id) AS workers
                                   FROM everfold.workers w
                                  WHERE g.id = ANY (w.carries) AND w.expires_at >= clock_timestamp()) w
             WHERE g.id = ANY ($3) AND everfold.is_run(g.status, g.lifecycle, g.projection)
               AND NOT everfold.is_rebuilt(g.id)
        ), pools AS (
            SELECT min(c.id) AS first, array_agg(c.id) AS generations, c.workers
              FROM carried c GROUP BY c.workers
        ), holders AS (
            SELECT p.first, l.id AS worker, l.n, count(c.shard) AS has
              FROM pools p
             CROSS JOIN LATERAL unnest(p.workers) WITH ORDINALITY AS l(id, n)
              LEFT JOIN everfold.checkpoints c ON c.owner = l.id AND c.generation = ANY (p.generations)
             GROUP BY p.first, l.id, l.n
        ), ranked AS (
            -- Whoever has more comes first, so that shards stay where they are. Among equals, whoever
            -- comes first in one pool does not come first in the next.
            SELECT h.first, h.worker, h.has, count(*) OVER pool AS among,
                   row_number() OVER (pool ORDER BY h.has DESC,
                       (h.n + h.first) % (SELECT count(*) FROM holders o WHERE o.first = h.first)) AS place
              FROM holders h WINDOW pool AS (PARTITION BY h.first)
        ), divided AS (
            SELECT p.first, p.generations,
                   (SELECT count(*) FROM everfold.checkpoints c
                     WHERE c.generation = ANY (p.generations)) AS shards
              FROM pools p
        )
        -- The rest of the division goes to those who come first.
        SELECT d.generations, r.has AS own,
               d.shards / r.among + CASE WHEN r.place <= d.shards % r.among THEN 1 ELSE 0 END AS share
          FROM divided d JOIN ranked r ON r.first = d.first AND r.worker = $1
    LOOP
        IF pool.own > pool.share THEN
            WITH beyond AS (
                SELECT c.generation, c.shard FROM everfold.checkpoints c
                 WHERE c.generation = ANY (pool.generations) AND c.owner = $1
                 ORDER BY c.generation DESC, c.shard DESC LIMIT pool.own - pool.share
            ), given_up AS (
                UPDATE everfold.checkpoints u SET owner = NULL, expires_at = NULL
                  FROM (SELECT c.generation, c.shard FROM everfold.checkpoints c
                          JOIN beyond b ON b.generation = c.generation AND b.shard = c.shard
                           FOR UPDATE OF c SKIP LOCKED) free
                 WHERE u.generation = free.generation AND u.shard = free.shard
            )
            SELECT surplus || array_agg(b.generation), surplus_shards || array_agg(b.shard)
              INTO surplus, surplus_shards FROM beyond b;
        ELSIF pool.own < pool.share THEN
            UPDATE everfold.checkpoints u
               SET owner = $1, epoch = u.epoch + 1, expires_at = lease_end
              FROM (SELECT c.generation, c.shard FROM everfold.checkpoints c
                     WHERE c.generation = ANY (pool.generations)
                       AND (c.owner IS NULL OR c.expires_at < clock_timestamp())
                     ORDER BY c.generation, c.shard LIMIT pool.share - pool.own
                       FOR UPDATE SKIP LOCKED) free
             WHERE u.generation = free.generation AND u.shard = free.shard;
        END IF;
    END LOOP;

    RETURN QUERY
        SELECT c.generation, c.shard, c.epoch, c.position
          FROM everfold.checkpoints c JOIN everfold.generations g ON g.id = c.generation
         WHERE c.owner = $1 AND g.id = ANY ($3) AND everfold.is_run(g.status, g.lifecycle, g.projection)
           AND NOT everfold.is_rebuilt(g.id)
           AND (c.generation, c.shard) NOT IN (SELECT s.g, s.s FROM unnest(surplus, surplus_shards) AS s(g, s))
         ORDER BY c.generation, c.shard;
END $$;

-- A worker stops: what it ran is free at once.
CREATE OR REPLACE FUNCTION everfold.leave(worker uuid) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, everfold, pg_temp AS $$
    UPDATE everfold.checkpoints SET owner = NULL, expires_at = NULL WHERE owner = $1;
    DELETE FROM everfold.workers WHERE id = $1;
$$;

-- Up to where the open skips of an inline generation are owed. One that appends feed owes all of them.
-- One that is fed behind the appends owes those up to its checkpoint: the others come with their
-- events. So does one that was fed that way until it was stopped. The caller has the checkpoint's row.
CREATE OR REPLACE FUNCTION everfold.owed_up_to(generation integer) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, everfold, pg_temp AS $$
    SELECT CASE
           WHEN g.status IN ('building', 'rebuilding', 'kept')
             OR (g.status <> 'active' AND p.active_generation IS DISTINCT FROM g.id)
           THEN (SELECT min(c.position) FROM everfold.checkpoints c WHERE c.generation = g.id)
           ELSE 9223372036854775807 END
      FROM everfold.generations g JOIN everfold.projections p ON p.id = g.projection
     WHERE g.id = $1
$$;

-- Takes open skips of an inline generation out, the earliest first, for whoever settles them: at most
-- so many, and never a later one of a key without those before it. Keys with a dead letter are left,
-- and so are keys that an append is working on right now: it settles them itself, or adds to them.
--
-- Holding the key's lock is what makes the look after it exact: every append of the key has ended.
-- For keys that are streams it is the lock of the stream, otherwise that of the key (015_locks.sql).
-- A generation that is fed behind the appends needs no such locks: none of them settles its skips, or
-- adds to those up to its checkpoint.
CREATE OR REPLACE FUNCTION everfold.take_skips(generation integer, max_skips integer)
RETURNS TABLE ("position" bigint, key text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, everfold, pg_temp AS $$
#variable_conflict use_column
DECLARE
    by_stream boolean := (SELECT g.key_fields IS NULL FROM everfold.generations g WHERE g.id = $1);
    owed_up_to bigint := everfold.owed_up_to($1);
    candidates text[];
    last_position bigint;
    candidate text;
    locked text[] := '{}';
BEGIN
    IF owed_up_to < 9223372036854775807 THEN
        RETURN QUERY
            WITH taken AS (
                DELETE FROM everfold.skips t
                 WHERE t.generation = $1 AND t.position IN (
                       SELECT s.position FROM everfold.skips s
                        WHERE s.generation = $1 AND s.position <= owed_up_to
                          AND NOT EXISTS (SELECT FROM everfold.dead_letters d
                                           WHERE d.generation = $1 AND d.key = s.key)
                        ORDER BY s.position LIMIT $2)
                RETURNING t.position, t.key
            )
            SELECT t.position, t.key FROM taken t ORDER BY t.position;
        RETURN;
    END IF;
    SELECT array_agg(s.key ORDER BY s.position), max(s.position) INTO candidates, last_position
      FROM (SELECT s.key, s.position FROM everfold.skips s
             WHERE s.generation = $1
               AND NOT EXISTS (SELECT FROM everfold.dead_letters d WHERE d.generation = $1 AND d.key = s.key)
             ORDER BY s.position LIMIT $2) s;
    FOR candidate IN SELECT DISTINCT c.key FROM unnest(candidates) AS c(key) LOOP
        IF (CASE WHEN by_stream
            THEN pg_try_advisory_xact_lock('everfold.stream_snapshots'::regclass::oid::int, hashtext(candidate))
            ELSE pg_try_advisory_xact_lock('everfold.skips'::regclass::oid::int, hashtext($1 || ':' || candidate))
            END)
        THEN
            locked := locked || candidate;
        END IF;
    END LOOP;
    RETURN QUERY
        WITH taken AS (
            DELETE FROM everfold.skips t
             WHERE t.generation = $1 AND t.position IN (
                   SELECT s.position FROM everfold.skips s
                    WHERE s.generation = $1 AND s.position <= last_position AND s.key = ANY (locked)
                      -- An append may have put the key aside meanwhile.
                      AND NOT EXISTS (SELECT FROM everfold.dead_letters d
                                       WHERE d.generation = $1 AND d.key = s.key)
                    ORDER BY s.position LIMIT $2)
            RETURNING t.position, t.key
        )
        SELECT t.position, t.key FROM taken t ORDER BY t.position;
END $$;
