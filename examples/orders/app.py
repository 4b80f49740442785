"""Orders in an ordinary table, and their events, in one transaction: Python with psycopg.

python3 app.py postgres://localhost/shop
"""
import json
import sys
import uuid

import psycopg
from psycopg.types.json import Jsonb


def append(connection, order_id, expected_version, event):
    """Appends an event of an order in the caller's transaction; returns its position and version."""
    sql = "SELECT last_position, version FROM everfold.append(%s, %s, %s)"
    return connection.execute(sql, (f"order-{order_id}", expected_version, Jsonb([event]))).fetchone()


def new_order(connection, customer, sku, cents):
    (number,) = connection.execute("SELECT nextval('order_numbers')").fetchone()
    return {"id": number, "customer": customer, "sku": sku, "cents": cents}


def place(connection, order, event_id):
    """The row and its event. Repeated with the same event id, it changes nothing."""
    connection.execute(
        """INSERT INTO orders (id, customer, sku, cents) VALUES (%(id)s, %(customer)s, %(sku)s, %(cents)s)
           ON CONFLICT (id) DO NOTHING""",
        order,
    )
    event = {"id": str(event_id), "type": "OrderPlaced", "data": order}
    return append(connection, order["id"], 0, event)  # 0: there must be no such order yet


def change(connection, order, status, event_type, expected_version):
    connection.execute("UPDATE orders SET status = %s WHERE id = %s", (status, order["id"]))
    return append(connection, order["id"], expected_version, {"type": event_type, "data": order})


def send_mails(connection):
    """One round of the outbox's consumer: what it does and how far it has come, in one transaction.

    read_all never goes past the high-water mark, so an event that commits late is not passed by. The
    lock on the row keeps a second consumer out.
    """
    with connection.transaction():
        sql = "SELECT position FROM consumers WHERE name = 'mailer' FOR UPDATE"
        (position,) = connection.execute(sql).fetchone()
        sql = "SELECT position, stream_id, type, data->>'customer' FROM everfold.read_all(%s, 100)"
        events = connection.execute(sql, (position,)).fetchall()
        for position, stream, event_type, customer in events:
            sql = "INSERT INTO mails (recipient, subject) VALUES (%s, %s)"
            connection.execute(sql, (customer, f"{stream}: {event_type}"))
            print(f"mail to {customer}: {stream}: {event_type}")
        connection.execute("UPDATE consumers SET position = %s WHERE name = 'mailer'", (position,))
    return len(events)


def main(url):
    # autocommit: a transaction is what `with connection.transaction()` says, and nothing else.
    connection = psycopg.connect(url, autocommit=True)

    order = new_order(connection, "alice", "tea", 450)
    with connection.transaction():
        _, version = place(connection, order, uuid.uuid4())
    print(f"order-{order['id']} is placed, version {version}")

    # Two clerks have seen version 1. The second one is told, and looks again.
    with connection.transaction():
        change(connection, order, "paid", "OrderPaid", version)
    try:
        with connection.transaction():
            change(connection, order, "cancelled", "OrderCancelled", version)
    except psycopg.Error as error:
        if error.sqlstate != "EF001":
            raise
        actual = json.loads(error.diag.message_detail)["actual"]
        sql = "SELECT type FROM everfold.read_stream(%s, max_count => 1, backward => true)"
        (last,) = connection.execute(sql, (f"order-{order['id']}",)).fetchone()
        print(f"not cancelled: version {actual} came before, {last}")

    # The answer was lost, so it is all done again, with the same event id.
    order, event_id = new_order(connection, "bob", "cup", 900), uuid.uuid4()
    with connection.transaction():
        first = place(connection, order, event_id)
    with connection.transaction():
        again = place(connection, order, event_id)
    assert again == first
    print(f"order-{order['id']} is asked for twice, version {again[1]}")

    # What is rolled back leaves neither a row nor an event.
    order = new_order(connection, "alice", "pot", 3900)
    with connection.transaction(force_rollback=True):
        place(connection, order, uuid.uuid4())
    sql = "SELECT (SELECT count(*) FROM orders WHERE id = %s), (SELECT count(*) FROM everfold.read_stream(%s))"
    rows, events = connection.execute(sql, (order["id"], f"order-{order['id']}")).fetchone()
    print(f"order-{order['id']} is rolled back: {rows} rows, {events} events")

    # Inline: there with the commit. Catch-up: wait until it has come to the position of the append.
    sql = "SELECT orders, cents FROM read_model.orders_by_customer WHERE customer = 'bob'"
    print("bob's orders: %s for %s" % connection.execute(sql).fetchone())
    (reached,) = connection.execute("SELECT everfold.wait_for('products_sold', %s, 30000)", (first[0],)).fetchone()
    assert reached, "products_sold is not fed: start `everfold run`"
    (sold,) = connection.execute("SELECT sold FROM read_model.products_sold WHERE sku = 'cup'").fetchone()
    print(f"cups sold: {sold}")

    while send_mails(connection):
        pass
    # An append that commits late: what comes after it waits, so that nobody passes it by.
    with psycopg.connect(url) as late:
        place(late, new_order(late, "alice", "tea", 450), uuid.uuid4())
        with connection.transaction():
            place(connection, new_order(connection, "bob", "tea", 450), uuid.uuid4())
        print(f"mails before the late commit: {send_mails(connection)}")
    send_mails(connection)  # leaving the block has committed it


main(sys.argv[1])
