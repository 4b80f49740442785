INSERT INTO read_model.bestsellers AS t (sku, in_carts)
SELECT data->>'sku',
       SUM(CAST(data->>'quantity' AS BIGINT) * CASE type WHEN 'ItemAdded' THEN 1 ELSE -1 END)
  FROM batch
 GROUP BY data->>'sku'
    ON CONFLICT (sku) DO UPDATE SET in_carts = t.in_carts + EXCLUDED.in_carts;
