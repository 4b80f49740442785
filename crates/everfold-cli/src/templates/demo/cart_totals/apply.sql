-- New in version 2: history, with the version and type of every event. A cart's events arrive in
-- their order, in batches of any size, so that each batch goes to the end of what is there.
INSERT INTO read_model.cart_totals AS t (cart_id, items, history)
SELECT stream_id,
       SUM(COALESCE(CAST(data->>'quantity' AS BIGINT), 0)
           * CASE type WHEN 'ItemRemoved' THEN -1 ELSE 1 END),
       STRING_AGG(CAST(version AS TEXT) || ' ' || type
                  || COALESCE(' ' || (data->>'quantity') || ' ' || (data->>'sku'), ''),
                  ', ' ORDER BY position)
  FROM batch
 GROUP BY stream_id
    ON CONFLICT (cart_id) DO UPDATE
       SET items = t.items + EXCLUDED.items, history = t.history || ', ' || EXCLUDED.history;
