-- An order and its events in one transaction, from psql.
BEGIN;
INSERT INTO orders VALUES (1);
SELECT * FROM everfold.append('order-1', 0, '[
    {"type": "OrderPlaced", "data": {"total": 1999}, "metadata": {"correlation_id": "request-1"}},
    {"type": "OrderPaid", "data": {}}
]');
COMMIT;

-- Somebody with an old version is refused: EF001.
SELECT * FROM everfold.append('order-1', 1, '[{"type": "OrderPaid", "data": {}}]');

-- What is rolled back never happened.
BEGIN;
SELECT * FROM everfold.append(stream_id => 'order-2', expected_version => NULL, events => '[{"type": "OrderPlaced", "data": {}}]');
ROLLBACK;

SELECT position, stream_id, version, type FROM everfold.read_stream('order-1');
SELECT position, type FROM everfold.read_all(0, 100, ARRAY['OrderPaid']);
SELECT everfold.high_water_mark();
