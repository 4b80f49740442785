-- The server's clock, and the position and time of the newest event (NULL: there is none). Takes no
-- locks.
SELECT clock_timestamp(), e.position, e.recorded_at
  FROM (SELECT) AS one
  LEFT JOIN LATERAL (SELECT e.position, e.recorded_at FROM everfold.events e
         ORDER BY e.position DESC LIMIT 1) e ON true
