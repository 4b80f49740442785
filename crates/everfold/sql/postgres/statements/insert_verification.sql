-- Records what a verification found.
-- $1 generation integer, $2 scope text, $3 position bigint, $4 compared bigint, $5 differences bigint,
-- $6 examples jsonb, $7 duration_ms bigint, $8 verified_by text.
-- Rows: id, verified_at. Locks: none but the new row.
INSERT INTO everfold.verifications
       (projection, generation, scope, position, compared, differences, examples, duration_ms, verified_by)
SELECT g.projection, g.id, $2, $3, $4, $5, $6, $7, $8 FROM everfold.generations g WHERE g.id = $1
RETURNING id, verified_at
