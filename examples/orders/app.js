// Orders in an ordinary table, and their events, in one transaction: Node with node-postgres.
//
// node app.js postgres://localhost/shop
const assert = require("assert");
const { randomUUID } = require("crypto");
const { Client } = require("pg");

async function one(client, sql, values) {
  return (await client.query(sql, values)).rows[0];
}

async function transaction(client, work) {
  await client.query("BEGIN");
  try {
    const result = await work();
    await client.query("COMMIT");
    return result;
  } catch (error) {
    await client.query("ROLLBACK");
    throw error;
  }
}

// Appends an event of an order in the caller's transaction; returns its position and version.
function append(client, orderId, expectedVersion, event) {
  const sql = "SELECT last_position, version FROM everfold.append($1, $2, $3)";
  return one(client, sql, [`order-${orderId}`, expectedVersion, JSON.stringify([event])]);
}

async function newOrder(client, customer, sku, cents) {
  const { id } = await one(client, "SELECT nextval('order_numbers')::int AS id");
  return { id, customer, sku, cents };
}

// The row and its event. Repeated with the same event id, it changes nothing.
async function place(client, order, eventId) {
  const sql = `INSERT INTO orders (id, customer, sku, cents) VALUES ($1, $2, $3, $4)
               ON CONFLICT (id) DO NOTHING`;
  await client.query(sql, [order.id, order.customer, order.sku, order.cents]);
  const event = { id: eventId, type: "OrderPlaced", data: order };
  return append(client, order.id, 0, event); // 0: there must be no such order yet
}

async function change(client, order, status, type, expectedVersion) {
  await client.query("UPDATE orders SET status = $1 WHERE id = $2", [status, order.id]);
  return append(client, order.id, expectedVersion, { type, data: order });
}

// One round of the outbox's consumer: what it does and how far it has come, in one transaction.
// read_all never goes past the high-water mark, so an event that commits late is not passed by. The
// lock on the row keeps a second consumer out.
function sendMails(client) {
  return transaction(client, async () => {
    let sql = "SELECT position FROM consumers WHERE name = 'mailer' FOR UPDATE";
    let { position } = await one(client, sql);
    sql = "SELECT position, stream_id, type, data->>'customer' AS customer FROM everfold.read_all($1, 100)";
    const { rows } = await client.query(sql, [position]);
    for (const event of rows) {
      const subject = `${event.stream_id}: ${event.type}`;
      sql = "INSERT INTO mails (recipient, subject) VALUES ($1, $2)";
      await client.query(sql, [event.customer, subject]);
      console.log(`mail to ${event.customer}: ${subject}`);
      position = event.position;
    }
    await client.query("UPDATE consumers SET position = $1 WHERE name = 'mailer'", [position]);
    return rows.length;
  });
}

async function main() {
  const [client, late] = [new Client(process.argv[2]), new Client(process.argv[2])];
  await Promise.all([client.connect(), late.connect()]);
  let order = await newOrder(client, "alice", "tea", 450);
  const { version } = await transaction(client, () => place(client, order, randomUUID()));
  console.log(`order-${order.id} is placed, version ${version}`);

  // Two clerks have seen version 1. The second one is told, and looks again.
  await transaction(client, () => change(client, order, "paid", "OrderPaid", version));
  try {
    await transaction(client, () => change(client, order, "cancelled", "OrderCancelled", version));
  } catch (error) {
    if (error.code !== "EF001") throw error;
    const sql = "SELECT type FROM everfold.read_stream($1, max_count => 1, backward => true)";
    const last = await one(client, sql, [`order-${order.id}`]);
    console.log(`not cancelled: version ${JSON.parse(error.detail).actual} came before, ${last.type}`);
  }

  // The answer was lost, so it is all done again, with the same event id.
  order = await newOrder(client, "bob", "cup", 900);
  const eventId = randomUUID();
  const first = await transaction(client, () => place(client, order, eventId));
  const again = await transaction(client, () => place(client, order, eventId));
  assert.deepEqual(again, first);
  console.log(`order-${order.id} is asked for twice, version ${again.version}`);

  // What is rolled back leaves neither a row nor an event.
  order = await newOrder(client, "alice", "pot", 3900);
  await client.query("BEGIN");
  await place(client, order, randomUUID());
  await client.query("ROLLBACK");
  const rows = await client.query("SELECT FROM orders WHERE id = $1", [order.id]);
  const events = await client.query("SELECT FROM everfold.read_stream($1)", [`order-${order.id}`]);
  console.log(`order-${order.id} is rolled back: ${rows.rowCount} rows, ${events.rowCount} events`);

  // Inline: there with the commit. Catch-up: wait until it has come to the position of the append.
  const bob = await one(client, "SELECT * FROM read_model.orders_by_customer WHERE customer = 'bob'");
  console.log(`bob's orders: ${bob.orders} for ${bob.cents}`);
  const waited = "SELECT everfold.wait_for('products_sold', $1, 30000) AS reached";
  const { reached } = await one(client, waited, [first.last_position]);
  assert(reached, "products_sold is not fed: start `everfold run`");
  const { sold } = await one(client, "SELECT sold FROM read_model.products_sold WHERE sku = 'cup'");
  console.log(`cups sold: ${sold}`);

  while (await sendMails(client));
  // An append that commits late: what comes after it waits, so that nobody passes it by.
  await late.query("BEGIN");
  await place(late, await newOrder(late, "alice", "tea", 450), randomUUID());
  order = await newOrder(client, "bob", "tea", 450);
  await transaction(client, () => place(client, order, randomUUID()));
  console.log(`mails before the late commit: ${await sendMails(client)}`);
  await late.query("COMMIT");
  await sendMails(client);
  await Promise.all([late.end(), client.end()]);
}

main();
