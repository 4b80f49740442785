-- The batches of a generation in the last minute.
--   ?1 generation integer
-- One row: events, and the seconds they took.
SELECT coalesce(sum(events), 0), coalesce(sum(duration_ms), 0.0) / 1000.0
  FROM everfold_run_log
 WHERE generation = ?1
   AND recorded_at > strftime('%Y-%m-%dT%H:%M:%f', 'now', '-60 seconds') || '000Z'
