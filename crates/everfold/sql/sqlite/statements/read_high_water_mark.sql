-- The high-water mark. Writers take turns, so positions are committed in their order and the
-- highest one that can be seen is the mark. (Not sqlite_sequence: an append that repeats an earlier
-- one may have moved it ahead.)
-- One row: position integer, NULL while there are no events.
SELECT max(position) FROM everfold_events
