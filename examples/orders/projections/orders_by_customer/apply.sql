INSERT INTO read_model.orders_by_customer AS c (customer, orders, cents)
SELECT data->>'customer',
       SUM(CASE type WHEN 'OrderPlaced' THEN 1 ELSE -1 END),
       SUM(CASE type WHEN 'OrderPlaced' THEN 1 ELSE -1 END * CAST(data->>'cents' AS BIGINT))
  FROM batch
 GROUP BY 1
    ON CONFLICT (customer) DO UPDATE SET orders = c.orders + EXCLUDED.orders, cents = c.cents + EXCLUDED.cents;
