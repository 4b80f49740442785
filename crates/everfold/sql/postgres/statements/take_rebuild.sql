-- Takes a rebuild that nobody works on, or whose worker gave no sign of life in time.
-- $1 id integer, $2 worker uuid, $3 its name text, $4 milliseconds integer. One row: epoch and target.
-- None if somebody works on it or it has ended. Locks its row.
UPDATE everfold.rebuilds r
   SET epoch = r.epoch + 1, owner = $2, owner_name = $3,
       expires_at = clock_timestamp() + make_interval(secs => $4 / 1000.0)
 WHERE r.id = $1 AND r.finished_at IS NULL
   AND (r.owner IS NULL OR r.expires_at IS NULL OR r.expires_at < clock_timestamp())
RETURNING r.epoch, r.target
