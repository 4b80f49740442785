-- Gives up the target of a rebuild, of which parts were copied and one failed: another one is made, and
-- filled in batches. It is retired, unless readers see it. For appends nothing changes: what is being
-- built and what is retired they leave alone alike.
-- $1 id integer, $2 epoch bigint. One row: its id. None if the lease is lost.
-- Locks the rebuild's row, then the generation's.
WITH given_up AS (
    SELECT r.id, r.projection, r.target FROM everfold.rebuilds r
     WHERE r.id = $1 AND r.epoch = $2 AND r.finished_at IS NULL AND r.flipped_at IS NULL FOR UPDATE
), begun_again AS (
    UPDATE everfold.rebuilds r
       SET target = NULL, cutoff = 0, events_done = 0, options = jsonb_set(r.options, '{by_batches}', 'true')
      FROM given_up g WHERE r.id = g.id
), forgotten AS (
    DELETE FROM everfold.rebuild_parts p USING given_up g WHERE p.rebuild = g.id
), retired AS (
    UPDATE everfold.generations t
       SET status = 'retired', reason = format('rebuild %s begins again in batches', g.id),
           status_since = clock_timestamp()
      FROM given_up g JOIN everfold.projections p ON p.id = g.projection
     WHERE t.id = g.target AND p.active_generation IS DISTINCT FROM t.id
)
SELECT id FROM given_up
