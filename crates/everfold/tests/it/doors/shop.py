"""An order and its events in one transaction, from Python with psycopg."""
import sys
import psycopg
from psycopg.types.json import Jsonb

APPEND = "SELECT first_position, last_position, version FROM everfold.append(%s, %s, %s)"

with psycopg.connect(sys.argv[1]) as connection:
    with connection.transaction():
        connection.execute("INSERT INTO orders VALUES (1)")
        events = [
            {"type": "OrderPlaced", "data": {"total": 1999}, "metadata": {"correlation_id": "request-1"}},
            {"type": "OrderPaid", "data": {}},
        ]
        row = connection.execute(APPEND, ("order-1", 0, Jsonb(events))).fetchone()
        assert row == (1, 2, 2), row

    try:
        with connection.transaction():
            connection.execute(APPEND, ("order-1", 1, Jsonb([{"type": "OrderPaid", "data": {}}])))
        raise AssertionError("an old version must be refused")
    except psycopg.Error as error:
        assert error.sqlstate == "EF001", error

    with connection.transaction(force_rollback=True):
        connection.execute(APPEND, ("order-2", None, Jsonb([{"type": "OrderPlaced", "data": {}}])))

    types = [row[0] for row in connection.execute("SELECT type FROM everfold.read_stream('order-1')")]
    assert types == ["OrderPlaced", "OrderPaid"], types
    paid = connection.execute("SELECT count(*) FROM everfold.read_all(0, 100, %s)", (["OrderPaid"],)).fetchone()
    assert paid == (1,), paid
print("python: all as expected")
