INSERT INTO read_model.products_sold AS p (sku, sold)
SELECT data->>'sku', COUNT(*)
  FROM batch
 GROUP BY 1
    ON CONFLICT (sku) DO UPDATE SET sold = p.sold + EXCLUDED.sold;
