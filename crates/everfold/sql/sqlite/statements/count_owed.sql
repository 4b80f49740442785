-- What a generation owes and has put aside.
--   ?1 generation integer
-- One row: open skips and the oldest, failed events and the oldest, events held behind them.
SELECT (SELECT count(*) FROM everfold_skips WHERE generation = ?1),
       (SELECT min(skipped_at) FROM everfold_skips WHERE generation = ?1),
       count(*) FILTER (WHERE behind IS NULL),
       min(created_at) FILTER (WHERE behind IS NULL),
       count(*) FILTER (WHERE behind IS NOT NULL)
  FROM everfold_dead_letters
 WHERE generation = ?1
