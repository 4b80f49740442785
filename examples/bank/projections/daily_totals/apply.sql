-- First what was booked, so that a reversal in the same batch finds it.
INSERT INTO read_model.daily_bookings (account, booking, day, cents)
SELECT stream_id, data->>'transaction', data->>'booked_on',
       CAST(data->>'amount' AS BIGINT) * CASE type WHEN 'Deposited' THEN 1 ELSE -1 END
  FROM batch
 WHERE type IN ('Deposited', 'Withdrawn');

-- Then the totals of every day that a booking or a reversal touches, however long ago it was.
INSERT INTO read_model.daily_totals AS t (account, day, bookings, reversals, cents)
SELECT account, day, SUM(booked), SUM(reversed), SUM(cents)
  FROM (
        SELECT b.account, b.day, 1 AS booked, 0 AS reversed, b.cents
          FROM batch AS e
          JOIN read_model.daily_bookings AS b
            ON b.account = e.stream_id AND b.booking = e.data->>'transaction'
         WHERE e.type IN ('Deposited', 'Withdrawn')
        UNION ALL
        SELECT b.account, b.day, 0, 1, -b.cents
          FROM batch AS e
          JOIN read_model.daily_bookings AS b
            ON b.account = e.stream_id AND b.booking = e.data->>'transaction'
         WHERE e.type = 'Reversed'
       ) AS changes
 GROUP BY account, day
    ON CONFLICT (account, day) DO UPDATE
       SET bookings = t.bookings + EXCLUDED.bookings,
           reversals = t.reversals + EXCLUDED.reversals,
           cents = t.cents + EXCLUDED.cents;
