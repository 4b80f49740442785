-- Ends a rebuild, frees the leases of its target and records it. Nobody can go on with it: its epoch is
-- raised. A target that a cancelled one has made, or taken from those made ahead of time, and that
-- readers do not see, is retired: it is removed by whoever comes next.
-- $1 id integer, $2 epoch bigint, $3 phase text, $4 events_done bigint or NULL, $5 events_total bigint or
-- NULL, $6 message text or NULL, $7 actor text. One row: its id. None if the lease is lost.
-- Locks its row, then those checkpoints of the target that are free.
WITH ended AS (
    UPDATE everfold.rebuilds r
       SET phase = $3, events_done = coalesce($4, r.events_done), events_total = coalesce($5, r.events_total),
           message = $6, epoch = r.epoch + 1, expires_at = NULL, finished_at = clock_timestamp()
     WHERE r.id = $1 AND r.epoch = $2 AND r.finished_at IS NULL
    RETURNING r.id, r.projection, r.kind, r.target, r.source, r.owner, r.requested_at, r.flipped_at
), retired AS (
    UPDATE everfold.generations g
       SET status = 'retired', reason = format('rebuild %s was cancelled', e.id), status_since = clock_timestamp()
      FROM ended e JOIN everfold.projections p ON p.id = e.projection
     WHERE $3 = 'cancelled' AND g.id = e.target AND g.status_since >= e.requested_at
       AND e.kind <> 'switch' AND e.flipped_at IS NULL AND p.active_generation IS DISTINCT FROM g.id
), freed AS (
    UPDATE everfold.checkpoints u SET owner = NULL, expires_at = NULL, epoch = u.epoch + 1
      FROM (SELECT c.generation, c.shard FROM everfold.checkpoints c
              JOIN ended e ON c.generation = e.target AND c.owner = e.owner
             ORDER BY c.shard FOR UPDATE OF c SKIP LOCKED) free
     WHERE u.generation = free.generation AND u.shard = free.shard
), recorded AS (
    INSERT INTO everfold.system_messages (generation, kind, actor, message)
    SELECT coalesce(e.target, e.source,
                    (SELECT max(g.id) FROM everfold.generations g WHERE g.projection = e.projection)),
           'rebuild', $7, format('rebuild %s is %s', e.id, $3) || coalesce(': ' || $6, '')
      FROM ended e
)
SELECT id FROM ended
