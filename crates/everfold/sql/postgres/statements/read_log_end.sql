-- Where the log ends: the highest position, the last one handed out (NULL: none, or this role may not see
-- it), and the mark that was published for standbys (NULL: none). One row. Takes no locks.
SELECT (SELECT coalesce(max(e.position), 0) FROM everfold.events e),
       CASE WHEN has_sequence_privilege('everfold.events_position_seq', 'SELECT, USAGE')
            THEN pg_sequence_last_value('everfold.events_position_seq') END,
       (SELECT p.position FROM everfold.published_mark p)
