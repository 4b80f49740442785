-- Where the log ends: the highest position, the last one handed out (NULL: this role may not see it), and
-- the mark that was published for standbys (NULL: none). One row. Takes no locks.
SELECT (SELECT coalesce(max(e.position), 0) FROM everfold.events e),
       (SELECT s.last_value FROM pg_sequences s
         WHERE s.schemaname = 'everfold' AND s.sequencename = 'events_position_seq'),
       (SELECT p.position FROM everfold.published_mark p)
