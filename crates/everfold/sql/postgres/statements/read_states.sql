-- Every generation that is not retired as in list_generations.sql, then what `status` shows of it:
-- status_since, its shards as JSON, skips, dead letters, how far behind, the batches of the last
-- minute (of the last thousand), and the last verification. Takes no locks.
SELECT g.id, p.namespace, p.name, g.version, g.kind, g.lifecycle, g.event_types, g.key_fields, g.shards,
       g.definition_hash, g.definition -> 'settings', g.on_error, g.home, g.tables, g.status, g.reason,
       (g.id = p.active_generation) IS TRUE AS is_active,
       s.status_since, coalesce(c.shards, '[]'), s.open_skips, s.oldest_skip,
       s.dead_letters, s.held_events, s.oldest_dead_letter, s.behind_since, s.behind_events,
       coalesce(r.events, 0) AS recent_events, coalesce(r.seconds, 0) AS recent_seconds,
       v.verified_at, v.scope, v.compared, v.differences
  FROM everfold.projection_status() s
  JOIN everfold.generations g ON g.id = s.generation
  JOIN everfold.projections p ON p.id = g.projection
 CROSS JOIN LATERAL (
       SELECT jsonb_agg(jsonb_build_object(
                  'shard', c.shard, 'position', c.position, 'epoch', c.epoch, 'owner', c.owner,
                  'owner_name', CASE WHEN w.expires_at >= clock_timestamp() THEN w.name END,
                  'owner_since', w.started_at, 'last_owner', w.name, 'expires_at', c.expires_at, 'moved_at', c.moved_at, 'attempts', c.attempts,
                  'failure', c.failure) ORDER BY c.shard) AS shards
         FROM everfold.checkpoints c
         LEFT JOIN everfold.workers w ON w.id = c.owner
        WHERE c.generation = g.id) c
 CROSS JOIN LATERAL (
       SELECT sum(r.events)::bigint AS events, sum(r.duration_ms)::float8 / 1000 AS seconds
         FROM (SELECT r.events, r.duration_ms, r.recorded_at
                 FROM everfold.run_log r WHERE r.generation = g.id ORDER BY r.id DESC LIMIT 1000) r
        WHERE r.recorded_at > clock_timestamp() - interval '1 minute') r
  LEFT JOIN LATERAL (
       SELECT v.verified_at, v.scope, v.compared, v.differences
         FROM everfold.verifications v
        WHERE v.projection = g.projection AND v.generation = g.id ORDER BY v.id DESC LIMIT 1) v ON true
 ORDER BY g.id
