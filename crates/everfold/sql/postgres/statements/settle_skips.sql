-- Takes out open skips whose events are applied, or put aside, in this transaction: by a batch that
-- comes by them, or by a switch. Each leaves a record.
-- $1 generation integer, $2 after bigint, $3 up_to bigint, $4 actor text. No rows.
-- Locks: the rows. Nobody else settles them, since the caller has the checkpoint's row.
WITH settled AS (
    DELETE FROM everfold.skips s
     WHERE s.generation = $1 AND s.position > $2 AND s.position <= $3
    RETURNING s.position, s.key
)
INSERT INTO everfold.system_messages (generation, kind, position, key, actor, message)
SELECT $1, 'skip-settled', s.position, s.key, $4,
       format('the event at position %s was applied with those around it', s.position)
  FROM settled s
 ORDER BY s.position
