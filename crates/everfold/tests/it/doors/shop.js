// An order and its events in one transaction, from Node with node-postgres.
const assert = require("assert");
const { Client } = require("pg");

const APPEND = "SELECT first_position, last_position, version FROM everfold.append($1, $2, $3)";

async function main() {
  const client = new Client({ connectionString: process.argv[2] });
  await client.connect();

  await client.query("BEGIN");
  await client.query("INSERT INTO orders VALUES (1)");
  const events = [
    { type: "OrderPlaced", data: { total: 1999 }, metadata: { correlation_id: "request-1" } },
    { type: "OrderPaid", data: {} },
  ];
  const { rows } = await client.query(APPEND, ["order-1", 0, JSON.stringify(events)]);
  assert.deepEqual(rows[0], { first_position: "1", last_position: "2", version: "2" });
  await client.query("COMMIT");

  const one = JSON.stringify([{ type: "OrderPaid", data: {} }]);
  await assert.rejects(client.query(APPEND, ["order-1", 1, one]), { code: "EF001" });

  await client.query("BEGIN");
  await client.query(APPEND, ["order-2", null, one]);
  await client.query("ROLLBACK");

  const read = await client.query("SELECT type FROM everfold.read_stream('order-1')");
  assert.deepEqual(read.rows.map((row) => row.type), ["OrderPlaced", "OrderPaid"]);
  const paid = await client.query("SELECT * FROM everfold.read_all(0, 100, $1)", [["OrderPaid"]]);
  assert.equal(paid.rowCount, 1);
  await client.end();
  console.log("node: all as expected");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
