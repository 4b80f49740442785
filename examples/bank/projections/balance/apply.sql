INSERT INTO read_model.balance AS b (account, cents, version)
SELECT stream_id,
       SUM(CAST(data->>'amount' AS BIGINT) * CASE type WHEN 'Withdrawn' THEN -1 ELSE 1 END),
       MAX(version)
  FROM batch
 GROUP BY stream_id
    ON CONFLICT (account) DO UPDATE
       SET cents = b.cents + EXCLUDED.cents, version = EXCLUDED.version;
