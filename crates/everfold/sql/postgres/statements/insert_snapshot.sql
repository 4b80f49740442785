-- Records a snapshot of a read model, before its tables are copied.
-- $1 generation integer, $2 positions bigint[] (of each shard), $3 taken_by text.
-- Dead letters and skips are those of the statement's moment. Rows: id. Locks: none but the new row.
INSERT INTO everfold.read_model_snapshots
       (projection, generation, version, definition_hash, home, tables, positions, dead_letters, skips, taken_by)
SELECT g.projection, g.id, g.version, g.definition_hash, '', '{}', $2,
       coalesce((SELECT jsonb_agg(jsonb_build_object('position', d.position, 'key', d.key,
                            'behind', d.behind, 'error', d.error, 'attempts', d.attempts) ORDER BY d.position)
                   FROM everfold.dead_letters d WHERE d.generation = g.id), '[]'),
       coalesce((SELECT jsonb_agg(jsonb_build_object('position', s.position, 'key', s.key,
                            'reason', s.reason) ORDER BY s.position)
                   FROM everfold.skips s WHERE s.generation = g.id), '[]'),
       $3
  FROM everfold.generations g WHERE g.id = $1
RETURNING id
