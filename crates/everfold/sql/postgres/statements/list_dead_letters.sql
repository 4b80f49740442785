-- Dead letters of a generation and the events held behind them, with their events, in rising order.
-- $1 generation integer, $2 max bigint. Takes no locks.
SELECT d.position, d.key, d.behind, d.error, d.attempts, e.stream_id, e.type, d.created_at, d.tried_at,
       d.retry_wanted
  FROM everfold.dead_letters d
  JOIN everfold.events e ON e.position = d.position
 WHERE d.generation = $1
 ORDER BY d.position
 LIMIT $2
