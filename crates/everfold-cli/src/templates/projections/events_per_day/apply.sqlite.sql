INSERT INTO read_model.events_per_day AS t (day, type, events)
SELECT substr(recorded_at, 1, 10), type, count(*)
  FROM batch
 GROUP BY 1, 2
    ON CONFLICT (day, type) DO UPDATE SET events = t.events + EXCLUDED.events;
