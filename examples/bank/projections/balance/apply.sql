-- SUM passes over NULL: an event without an amount must fail, whichever events it comes with.
INSERT INTO read_model.balance AS b (account, cents, version)
SELECT stream_id,
       CASE WHEN COUNT(data->>'amount') = COUNT(*)
            THEN SUM(CAST(data->>'amount' AS BIGINT) * CASE type WHEN 'Withdrawn' THEN -1 ELSE 1 END)
       END,
       MAX(version)
  FROM batch
 GROUP BY stream_id
    ON CONFLICT (account) DO UPDATE
       SET cents = b.cents + EXCLUDED.cents, version = EXCLUDED.version;
