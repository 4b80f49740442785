//! Orders in an ordinary table, and their events, in one transaction: Rust with sqlx.
//!
//! `cargo run --bin orders postgres://localhost/shop`

use std::error::Error;

use serde_json::{Value, json};
use sqlx::postgres::PgDatabaseError;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

type Db = PgConnection;

fn stream(order: &Value) -> String {
    format!("order-{}", order["id"])
}

/// Appends an event of an order in the caller's transaction; returns its position and version.
async fn append(
    db: &mut Db,
    order: &Value,
    expected: i64,
    event: Value,
) -> sqlx::Result<(i64, i64)> {
    let append = sqlx::query_as("SELECT last_position, version FROM everfold.append($1, $2, $3)");
    append.bind(stream(order)).bind(expected).bind(json!([event])).fetch_one(db).await
}

async fn new_order(db: &mut Db, customer: &str, sku: &str, cents: i64) -> sqlx::Result<Value> {
    let next = sqlx::query_scalar("SELECT nextval('order_numbers')");
    let id: i64 = next.fetch_one(db).await?;
    Ok(json!({ "id": id, "customer": customer, "sku": sku, "cents": cents }))
}

/// The row and its event, in one transaction. Repeated with the same event id, it changes nothing.
async fn place(db: &mut Db, order: &Value, event_id: Uuid) -> sqlx::Result<(i64, i64)> {
    let mut tx = db.begin().await?;
    let insert = "INSERT INTO orders (id, customer, sku, cents)
                  SELECT id, customer, sku, cents FROM jsonb_populate_record(NULL::orders, $1)
                  ON CONFLICT (id) DO NOTHING";
    sqlx::query(insert).bind(order).execute(&mut *tx).await?;
    let event = json!({ "id": event_id, "type": "OrderPlaced", "data": order });
    let stored = append(&mut tx, order, 0, event).await?; // 0: there must be no such order yet
    tx.commit().await?;
    Ok(stored)
}

async fn change(db: &mut Db, order: &Value, to: (&str, &str), expected: i64) -> sqlx::Result<()> {
    let (status, event_type) = to;
    let mut tx = db.begin().await?;
    let update = sqlx::query("UPDATE orders SET status = $1 WHERE id = $2");
    update.bind(status).bind(order["id"].as_i64()).execute(&mut *tx).await?;
    append(&mut tx, order, expected, json!({ "type": event_type, "data": order })).await?;
    tx.commit().await
}

/// One round of the outbox's consumer: what it does and how far it has come, in one transaction.
/// `read_all` never goes past the high-water mark, so an event that commits late is not passed by. The
/// lock on the row keeps a second consumer out.
async fn send_mails(db: &mut Db) -> sqlx::Result<usize> {
    let mut tx = db.begin().await?;
    let lock = "SELECT position FROM consumers WHERE name = 'mailer' FOR UPDATE";
    let mut position: i64 = sqlx::query_scalar(lock).fetch_one(&mut *tx).await?;
    let read = "SELECT position, stream_id || ': ' || type, data->>'customer'
                FROM everfold.read_all($1, 100)";
    let read = sqlx::query_as(read).bind(position);
    let events: Vec<(i64, String, String)> = read.fetch_all(&mut *tx).await?;
    for (at, subject, customer) in &events {
        let insert = sqlx::query("INSERT INTO mails (recipient, subject) VALUES ($1, $2)");
        insert.bind(customer).bind(subject).execute(&mut *tx).await?;
        println!("mail to {customer}: {subject}");
        position = *at;
    }
    let update = sqlx::query("UPDATE consumers SET position = $1 WHERE name = 'mailer'");
    update.bind(position).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(events.len())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("give the URL of a database: postgres://…")?;
    let db = &mut PgConnection::connect(&url).await?;

    let order = new_order(db, "alice", "tea", 450).await?;
    let (_, version) = place(db, &order, Uuid::now_v7()).await?;
    println!("{} is placed, version {version}", stream(&order));

    // Two clerks have seen version 1. The second one is told, and looks again.
    change(db, &order, ("paid", "OrderPaid"), version).await?;
    if let Err(error) = change(db, &order, ("cancelled", "OrderCancelled"), version).await {
        let conflict = error.as_database_error().filter(|e| e.code().as_deref() == Some("EF001"));
        let Some(conflict) = conflict else { return Err(error.into()) };
        let detail = conflict.downcast_ref::<PgDatabaseError>().detail().unwrap_or_default();
        let actual = &serde_json::from_str::<Value>(detail)?["actual"];
        let read = "SELECT type FROM everfold.read_stream($1, max_count => 1, backward => true)";
        let read = sqlx::query_scalar(read).bind(stream(&order));
        let last: String = read.fetch_one(&mut *db).await?;
        println!("not cancelled: version {actual} came before, {last}");
    }

    // The answer was lost, so it is all done again, with the same event id.
    let (order, event_id) = (new_order(db, "bob", "cup", 900).await?, Uuid::now_v7());
    let first = place(db, &order, event_id).await?;
    let again = place(db, &order, event_id).await?;
    assert_eq!(again, first);
    println!("{} is asked for twice, version {}", stream(&order), again.1);

    // What is rolled back leaves neither a row nor an event.
    let order = new_order(db, "alice", "pot", 3900).await?;
    let mut tx = db.begin().await?;
    place(&mut tx, &order, Uuid::now_v7()).await?;
    tx.rollback().await?;
    let count = "SELECT (SELECT count(*) FROM orders WHERE id = $1),
                        (SELECT count(*) FROM everfold.read_stream($2))";
    let count = sqlx::query_as(count).bind(order["id"].as_i64()).bind(stream(&order));
    let (rows, events): (i64, i64) = count.fetch_one(&mut *db).await?;
    println!("{} is rolled back: {rows} rows, {events} events", stream(&order));

    // Inline: there with the commit. Catch-up: wait until it has come to the position of the append.
    let bob = "SELECT orders, cents FROM read_model.orders_by_customer WHERE customer = 'bob'";
    let (orders, cents): (i64, i64) = sqlx::query_as(bob).fetch_one(&mut *db).await?;
    println!("bob's orders: {orders} for {cents}");
    let wait =
        sqlx::query_scalar("SELECT everfold.wait_for('products_sold', $1, 30000)").bind(first.0);
    let reached: bool = wait.fetch_one(&mut *db).await?;
    assert!(reached, "products_sold is not fed: start `everfold run`");
    let sold = sqlx::query_scalar("SELECT sold FROM read_model.products_sold WHERE sku = 'cup'");
    let sold: i64 = sold.fetch_one(&mut *db).await?;
    println!("cups sold: {sold}");

    while send_mails(db).await? > 0 {}
    // An append that commits late: what comes after it waits, so that nobody passes it by.
    let mut late = PgConnection::connect(&url).await?;
    let mut open = late.begin().await?;
    let order = new_order(db, "alice", "tea", 450).await?;
    place(&mut open, &order, Uuid::now_v7()).await?;
    let order = new_order(db, "bob", "tea", 450).await?;
    place(db, &order, Uuid::now_v7()).await?;
    println!("mails before the late commit: {}", send_mails(db).await?);
    open.commit().await?;
    send_mails(db).await?;
    Ok(())
}
