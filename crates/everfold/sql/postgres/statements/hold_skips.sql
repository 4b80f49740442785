-- Lets open skips of keys with a dead letter wait behind it, as held events do.
-- $1 generation integer, $2 up_to bigint. No rows.
-- Locks: the rows. Nobody else settles them, since the caller has the checkpoint's row.
WITH held AS (
    DELETE FROM everfold.skips s
     USING (SELECT d.key, min(d.position) AS behind FROM everfold.dead_letters d
             WHERE d.generation = $1 AND d.behind IS NULL GROUP BY d.key) d
     WHERE s.generation = $1 AND s.key = d.key AND s.position <= $2
    RETURNING s.position, s.key, d.behind
)
INSERT INTO everfold.dead_letters (generation, position, key, behind)
SELECT $1, h.position, h.key, h.behind FROM held h ORDER BY h.position
ON CONFLICT (generation, position) DO NOTHING
