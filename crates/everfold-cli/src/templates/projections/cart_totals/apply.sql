-- batch has the events in their order: position, stream_id, version, type, schema_version,
-- data, metadata, id, recorded_at.
INSERT INTO read_model.cart_totals AS t (cart_id, items)
SELECT stream_id,
       COALESCE(SUM(CAST(data->>'quantity' AS BIGINT)
                    * CASE type WHEN 'ItemAdded' THEN 1 ELSE -1 END), 0)
  FROM batch
 GROUP BY stream_id
    ON CONFLICT (cart_id) DO UPDATE SET items = t.items + EXCLUDED.items;
