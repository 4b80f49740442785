-- Records what a verification found.
-- ?1 generation, ?2 scope, ?3 position, ?4 compared, ?5 differences, ?6 examples (JSON), ?7 duration_ms,
-- ?8 verified_by. Rows: id, verified_at.
INSERT INTO everfold_verifications
       (projection, generation, scope, position, compared, differences, examples, duration_ms, verified_by)
SELECT g.projection, g.id, ?2, ?3, ?4, ?5, ?6, ?7, ?8 FROM everfold_generations g WHERE g.id = ?1
RETURNING id, verified_at
