-- For PostgreSQL: apply.sqlite.sql takes over on SQLite, whose dates are text.
INSERT INTO read_model.events_per_day AS t (day, type, events)
SELECT to_char(recorded_at AT TIME ZONE 'UTC', 'YYYY-MM-DD'), type, count(*)
  FROM batch
 GROUP BY 1, 2
    ON CONFLICT (day, type) DO UPDATE SET events = t.events + EXCLUDED.events;
