-- The highest position handed out and the highest stored.
-- One row: sequence integer, position integer; 0 while there is none.
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'everfold_events'), 0),
       coalesce((SELECT max(position) FROM everfold_events), 0)
