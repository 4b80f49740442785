//! What `docs/guide/rust.md` shows, a function for each block.
#![allow(dead_code, reason = "an example shows more than it uses")]

use everfold::{DocumentProjection, ExpectedVersion, Projection, RecordedEvent, Store};
use serde::{Deserialize, Serialize};

use crate::fixture::{Fixture, event, on_every_store};

on_every_store!(
    events_are_appended_and_read,
    commands_are_decided,
    old_events_are_brought_up,
    projections_are_fed_and_read,
);

type Done = Result<(), Box<dyn std::error::Error>>;

#[derive(Serialize, Deserialize)]
enum Counting {
    Counted { n: u64 },
}

struct Count;

impl DocumentProjection for Count {
    type Event = Counting;
    type Document = u64;

    fn evolve(&self, count: Option<u64>, _: &Counting, _: &RecordedEvent) -> Option<u64> {
        Some(count.unwrap_or(0) + 1)
    }
}

/// How many events each stream has.
pub(super) fn count(name: &str, version: u32) -> Projection {
    Projection::document(name, version, Count).build().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_are_opened() {
    let (file, server) = (Fixture::sqlite(), Fixture::postgres().await);
    open(&file.url, &server.url).await.unwrap();
}

async fn open(file: &str, url: &str) -> Done {
    // page: open
    use everfold::{Store, StoreOptions};

    let store = Store::open(file).await?; // "sqlite:shop.db": made if it is not there

    let mut options = StoreOptions::default();
    options.migrate = Some(true); // create or update the schema now
    let on_a_server = Store::open_with(url, options).await?; // "postgres://app@localhost/shop"
    // end
    for store in [store, on_a_server] {
        assert!(store.read_all().collect().await?.is_empty());
    }
    Ok(())
}

async fn events_are_appended_and_read(fixture: Fixture) {
    let store = fixture.store().await;
    let opened = event("CartOpened", serde_json::json!({}));
    store.append("cart-1", ExpectedVersion::NoStream, [opened]).await.unwrap();
    append_and_read(store).await.unwrap();
}

async fn append_and_read(store: Store) -> Done {
    // page: append_and_read
    use everfold::{AppendError, ExpectedVersion, NewEvent, Position};
    use serde::{Deserialize, Serialize};

    #[derive(Debug, Serialize, Deserialize)]
    enum CartEvent {
        ItemAdded { sku: String, quantity: u32 },
        CheckedOut,
    }

    let event = NewEvent::from_event(&CartEvent::CheckedOut)?.with_correlation_id("request-7");
    match store.append("cart-1", ExpectedVersion::Exists, [event]).await {
        Ok(stored) => println!("stored at {}", stored.last_position),
        Err(AppendError::VersionConflict { actual, .. }) => println!("the cart is at {actual}"),
        Err(error) => return Err(error.into()),
    }

    // One stream, forward or backward.
    let last = store.read_stream("cart-1").backward().limit(1).collect().await?;

    // Everything, of the types that the enum has, from a position on.
    let mut events = store.read_all().after(Position(1)).typed::<CartEvent>();
    while let Some(cart) = events.next().await? {
        println!("{} {:?}", cart.recorded.stream_id, cart.event);
    }

    // The same, and then whatever comes, until somebody has checked out.
    let mut events = store.follow().events();
    while let Some(event) = events.next().await? {
        if event.event_type == "CheckedOut" {
            break;
        }
    }
    // end
    assert_eq!(last[0].event_type, "CheckedOut");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_appended_in_a_transaction_on_postgres() {
    let fixture = Fixture::postgres().await;
    let store = fixture.store().await;
    fixture.execute("CREATE TABLE orders (id bigint PRIMARY KEY)", "").await;
    in_postgres(&fixture.url).await.unwrap();
    assert_eq!(store.stream_version("order-42").await.unwrap().0, 1);
}

async fn in_postgres(url: &str) -> Done {
    // page: in_postgres
    use everfold::postgres::{append_in, connect};
    use everfold::{ExpectedVersion, NewEvent, StreamAppend};

    let mut client = connect(url).await?; // or any tokio_postgres::Client of yours
    let transaction = client.transaction().await?;
    transaction.execute("INSERT INTO orders (id) VALUES (42)", &[]).await?;
    let placed = NewEvent::from_json("OrderPlaced", r#"{"total": 1999}"#)?;
    let append = StreamAppend::new("order-42", ExpectedVersion::NoStream, [placed]);
    append_in(&transaction, &append).await?;
    transaction.commit().await?;
    // end
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_appended_in_a_transaction_on_sqlite() {
    let fixture = Fixture::sqlite();
    let store = fixture.store().await;
    fixture.execute("", "CREATE TABLE orders (id INTEGER PRIMARY KEY)").await;
    in_sqlite(fixture.url.strip_prefix("sqlite:").unwrap()).unwrap();
    assert_eq!(store.stream_version("order-42").await.unwrap().0, 1);
}

fn in_sqlite(file: &str) -> Done {
    // page: in_sqlite
    use everfold::sqlite::append_in;
    use everfold::sqlite::rusqlite::{Connection, TransactionBehavior};
    use everfold::{ExpectedVersion, NewEvent, StreamAppend};

    let mut connection = Connection::open(file)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute("INSERT INTO orders (id) VALUES (42)", [])?;
    let placed = NewEvent::from_json("OrderPlaced", r#"{"total": 1999}"#)?;
    append_in(&transaction, &StreamAppend::new("order-42", ExpectedVersion::NoStream, [placed]))?;
    transaction.commit()?;
    // end
    Ok(())
}

async fn commands_are_decided(fixture: Fixture) {
    decide(fixture.store().await).await.unwrap();
}

async fn decide(store: Store) -> Done {
    // page: decide
    use everfold::{CommandHandler, Decider, SnapshotPolicy};
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    enum AccountEvent {
        Deposited { amount: u64 },
        Withdrawn { amount: u64 },
    }

    enum Command {
        Deposit(u64),
        Withdraw(u64),
    }

    struct Account;

    impl Decider for Account {
        type Command = Command;
        type Event = AccountEvent;
        type State = u64; // the balance
        type Error = String;

        fn initial(&self) -> u64 {
            0
        }

        fn evolve(&self, balance: u64, event: &AccountEvent) -> u64 {
            match event {
                AccountEvent::Deposited { amount } => balance + amount,
                AccountEvent::Withdrawn { amount } => balance - amount,
            }
        }

        fn decide(&self, balance: &u64, command: &Command) -> Result<Vec<AccountEvent>, String> {
            match command {
                Command::Deposit(amount) => Ok(vec![AccountEvent::Deposited { amount: *amount }]),
                Command::Withdraw(amount) if amount > balance => Err("not enough money".into()),
                Command::Withdraw(amount) => Ok(vec![AccountEvent::Withdrawn { amount: *amount }]),
            }
        }
    }

    let accounts = CommandHandler::new(store, Account)
        .snapshots(SnapshotPolicy::every(100, "account").state_version(2));
    let handled = accounts.handle("account-1", &Command::Deposit(50)).await?;
    assert_eq!(handled.state, 50);
    // end
    assert!(accounts.handle("account-1", &Command::Withdraw(80)).await.is_err());
    Ok(())
}

async fn old_events_are_brought_up(fixture: Fixture) {
    let store = fixture.store().await;
    let old = event("ClientNamed", serde_json::json!({ "name": "Ada" }));
    store.append("customer-1", ExpectedVersion::Any, [old]).await.unwrap();
    upcast(&fixture.url).await.unwrap();
}

async fn upcast(url: &str) -> Done {
    // page: upcast
    use std::sync::Arc;

    use everfold::{Store, StoreOptions, Upcasters};
    use serde_json::{Value, json};

    let mut options = StoreOptions::default();
    options.upcasters = Arc::new(
        Upcasters::new()
            .add("CustomerNamed", 1, |data: Value| {
                let name = data["name"].as_str().ok_or("there is no name")?;
                Ok::<_, &str>(json!({ "first": name, "last": "" }))
            })
            .rename("ClientNamed", "CustomerNamed"),
    );
    let store = Store::open_with(url, options).await?;
    // end
    let read = store.read_stream("customer-1").collect().await?;
    assert_eq!(read[0].data_as::<Value>()?, json!({ "first": "Ada", "last": "" }));
    Ok(())
}

async fn projections_are_fed_and_read(fixture: Fixture) {
    project(fixture.store().await).await.unwrap();
}

async fn project(store: Store) -> Done {
    // page: project
    use std::time::Duration;

    use everfold::{
        DocumentProjection, ExpectedVersion, NewEvent, Projection, RecordedEvent, Runner,
    };
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    enum CartEvent {
        ItemAdded { sku: String, quantity: u32 },
        Emptied,
    }

    #[derive(Default, Serialize, Deserialize)]
    struct Cart {
        items: u32,
    }

    struct CartSummary;

    impl DocumentProjection for CartSummary {
        type Event = CartEvent;
        type Document = Cart;

        fn evolve(&self, cart: Option<Cart>, event: &CartEvent, _: &RecordedEvent) -> Option<Cart> {
            let mut cart = cart.unwrap_or_default();
            match event {
                CartEvent::ItemAdded { quantity, .. } => cart.items += quantity,
                CartEvent::Emptied => return None, // no document any more
            }
            Some(cart)
        }
    }

    // Inline: from now on appends through this handle apply it.
    let summary = Projection::document("cart_summary", 1, CartSummary).inline().index("items");
    store.register(summary.build()?).await?;

    // Catch-up: one document for each product instead of each cart.
    let by_product = Projection::document("by_product", 1, CartSummary)
        .key(|event, _| match event {
            CartEvent::ItemAdded { sku, .. } => Some(sku.clone()),
            CartEvent::Emptied => None,
        })
        .build()?;
    let runner = Runner::new(&store).projection(by_product).start().await?;

    let added = CartEvent::ItemAdded { sku: "A1".into(), quantity: 2 };
    let stored =
        store.append("cart-1", ExpectedVersion::Any, [NewEvent::from_event(&added)?]).await?;

    let carts = store.documents::<Cart>("cart_summary");
    assert_eq!(carts.clone().get("cart-1").await?.unwrap().items, 2); // it is there at once
    let pairs = carts.find("items", 2).limit(10).collect().await?;

    store.wait_for("by_product", stored.last_position, Duration::from_secs(60)).await?;
    let product = store.documents::<Cart>("by_product").get("A1").await?; // now it is there too
    runner.stop().await;
    // end
    assert_eq!((pairs.len(), product.unwrap().items), (1, 2));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_writes_in_the_transaction() {
    let fixture = Fixture::postgres().await;
    let store = fixture.store().await;
    let placed = event("OrderPlaced", serde_json::json!({}));
    store.append("order-1", ExpectedVersion::Any, [placed]).await.unwrap();
    handle(&store).await.unwrap();
    let rows = fixture.rows("SELECT orders FROM read_model.daily").await;
    assert_eq!(rows, [[serde_json::json!(1)]]);
}

async fn handle(store: &Store) -> Done {
    // page: handle
    use everfold::postgres::{PostgresHandler, tokio_postgres::Transaction};
    use everfold::{HandlerBatch, HandlerError, Projection, Runner};
    use futures::future::BoxFuture;

    struct Daily;

    impl PostgresHandler for Daily {
        fn set_up<'a>(
            &'a self,
            home: &'a str, // the schema of this projection's tables
            transaction: &'a Transaction<'_>,
        ) -> BoxFuture<'a, Result<(), HandlerError>> {
            Box::pin(async move {
                let create = "(day date PRIMARY KEY, orders bigint NOT NULL)";
                Ok(transaction
                    .batch_execute(&format!("CREATE TABLE {home}.daily {create}"))
                    .await?)
            })
        }

        fn apply<'a>(
            &'a self,
            batch: HandlerBatch<'a>,
            transaction: &'a Transaction<'_>,
        ) -> BoxFuture<'a, Result<(), HandlerError>> {
            Box::pin(async move {
                let count = format!(
                    "INSERT INTO {}.daily AS d VALUES ($1::text::date, 1)
                     ON CONFLICT (day) DO UPDATE SET orders = d.orders + 1",
                    batch.home
                );
                for event in batch.events {
                    let day = event.recorded_at.to_string()[..10].to_owned();
                    transaction.execute(&count, &[&day]).await?;
                }
                Ok(())
            })
        }
    }

    let daily = Projection::postgres_handler("daily", 1, Daily).events(["OrderPlaced"]).build()?;
    Runner::new(store).projection(daily).run_once().await?;
    // end
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_projection_is_tested() {
    test().await.unwrap();
}

async fn test() -> Done {
    #[derive(Serialize)]
    enum CartEvent {
        ItemAdded { quantity: u32 },
    }

    // page: test
    use everfold::Projection;
    use everfold::testing::ProjectionTest;

    let totals = Projection::sql("cart_totals", 1)
        .create(
            "CREATE TABLE read_model.cart_totals (cart_id TEXT PRIMARY KEY, items BIGINT NOT NULL)",
        )
        .apply(
            "INSERT INTO read_model.cart_totals AS t (cart_id, items)
             SELECT stream_id, SUM(CAST(data->>'quantity' AS BIGINT)) FROM batch GROUP BY stream_id
             ON CONFLICT (cart_id) DO UPDATE SET items = t.items + excluded.items",
        )
        .build()?;
    ProjectionTest::new(totals) // on SQLite; .on("postgres://…") for a server
        .given(
            "cart-1",
            [CartEvent::ItemAdded { quantity: 2 }, CartEvent::ItemAdded { quantity: 1 }],
        )
        .given("cart-2", [CartEvent::ItemAdded { quantity: 4 }])
        .then_rows(
            "SELECT cart_id, items FROM read_model.cart_totals ORDER BY cart_id",
            [("cart-1", 3), ("cart-2", 4)],
        )
        .run()
        .await?;
    // end
    Ok(())
}
