//! Document projections: a fold of each key's events, inline or behind the appends, and reading
//! what came of it.

use std::collections::BTreeMap;
use std::time::Duration;

use everfold::{
    AppendError, DocumentProjection, ExpectedVersion, NewEvent, OnError, Projection,
    ProjectionError, RecordedEvent, Runner, Store,
};
use everfold_testkit::eventually;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::fixture::{Fixture, append, caught_up, event, failed, on_every_store, read_all};

on_every_store! {
    inline_documents_are_there_with_the_append,
    inline_document_of_many_handles_is_the_fold_of_the_log,
    catch_up_documents_are_the_fold_of_the_log,
    none_deletes_the_document,
    documents_can_have_a_key_of_their_own,
    documents_are_found_by_their_fields,
    documents_are_read_in_pages_in_the_order_of_keys,
    document_that_does_not_fit_stops_the_projection_and_says_what_to_do,
    document_that_does_not_fit_the_reader_is_an_error_with_its_key,
    panic_in_evolve_stops_only_its_own_projection,
    panic_in_an_inline_evolve_fails_the_append_and_names_the_projection,
    event_types_that_nobody_knows_are_passed_over,
    documents_of_nobody_are_an_error_that_says_so,
}

#[derive(Debug, Serialize, Deserialize)]
enum OrderEvent {
    Placed { customer: String, city: String, amount: i64 },
    Paid { amount: i64 },
    Cancelled,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Order {
    customer: Customer,
    amount: i64,
    paid: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Customer {
    name: String,
    city: String,
}

struct Orders;

impl DocumentProjection for Orders {
    type Event = OrderEvent;
    type Document = Order;

    fn evolve(&self, order: Option<Order>, event: &OrderEvent, _: &RecordedEvent) -> Option<Order> {
        match event {
            OrderEvent::Placed { customer, city, amount } => Some(Order {
                customer: Customer { name: customer.clone(), city: city.clone() },
                amount: *amount,
                paid: false,
            }),
            OrderEvent::Paid { amount } => order.map(|order| {
                let amount = order.amount - amount;
                Order { amount, paid: amount == 0, ..order }
            }),
            OrderEvent::Cancelled => None,
        }
    }
}

fn placed(customer: &str, city: &str, amount: i64) -> NewEvent {
    let (customer, city) = (customer.to_owned(), city.to_owned());
    NewEvent::from_event(&OrderEvent::Placed { customer, city, amount }).unwrap()
}

fn paid(amount: i64) -> NewEvent {
    NewEvent::from_event(&OrderEvent::Paid { amount }).unwrap()
}

fn order(customer: &str, city: &str, amount: i64, paid: bool) -> Order {
    Order { customer: Customer { name: customer.into(), city: city.into() }, amount, paid }
}

fn orders() -> everfold::ProjectionBuilder<everfold::DocumentBody<Orders>> {
    Projection::document("orders", 1, Orders)
}

/// A chain over the events of a key: one that is lost, doubled or out of order shows.
struct Chain;

#[derive(Deserialize)]
enum Counted {
    Counted { n: u64 },
}

impl DocumentProjection for Chain {
    type Event = Counted;
    type Document = u64;

    fn evolve(&self, chain: Option<u64>, event: &Counted, recorded: &RecordedEvent) -> Option<u64> {
        let Counted::Counted { n } = event;
        Some(link(chain, *n, recorded))
    }
}

fn link(chain: Option<u64>, n: u64, recorded: &RecordedEvent) -> u64 {
    let mixed = chain.unwrap_or(7).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23);
    // JSON numbers of this size are exact everywhere.
    (mixed ^ n.wrapping_mul(31) ^ recorded.version.0) & ((1 << 53) - 1)
}

/// What the log says the chains must be.
async fn chains(store: &Store) -> BTreeMap<String, u64> {
    let mut chains = BTreeMap::new();
    for event in read_all(store).await {
        let Some(Counted::Counted { n }) = event.decode().unwrap() else { continue };
        let key = event.stream_id.to_string();
        let chain = link(chains.get(&key).copied(), n, &event);
        chains.insert(key, chain);
    }
    chains
}

async fn stored_chains(store: &Store) -> BTreeMap<String, u64> {
    let found = store.documents::<u64>("chain").collect().await.unwrap();
    found.into_iter().map(|found| (found.key, found.document)).collect()
}

async fn inline_documents_are_there_with_the_append(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(orders().inline().build().unwrap()).await.unwrap();
    append(&store, "order-1", [placed("ada", "Bern", 10), paid(4)]).await;
    let read = || store.documents::<Order>("orders");
    assert_eq!(read().get("order-1").await.unwrap(), Some(order("ada", "Bern", 6, false)));
    let last = append(&store, "order-1", [paid(6)]).await;
    let found = read().get_many(["order-1", "order-2"]).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].document, order("ada", "Bern", 0, true));
    assert_eq!(found[0].position, last.last_position);

    // An append that is refused leaves the document as it was; a repeat changes nothing.
    let again = store.append("order-1", ExpectedVersion::NoStream, [paid(1)]).await;
    assert!(matches!(again, Err(AppendError::VersionConflict { .. })), "{again:?}");
    let payment = paid(5);
    append(&store, "order-2", [placed("bob", "Ghent", 10), payment.clone()]).await;
    append(&store, "order-2", [payment]).await;
    assert_eq!(read().get("order-1").await.unwrap(), Some(order("ada", "Bern", 0, true)));
    assert_eq!(read().get("order-2").await.unwrap(), Some(order("bob", "Ghent", 5, false)));
}

async fn inline_document_of_many_handles_is_the_fold_of_the_log(fixture: Fixture) {
    const HANDLES: u64 = 3;
    const EVENTS: u64 = 40;
    let first = fixture.store().await;
    let chain = || Projection::document("chain", 1, Chain).inline().build().unwrap();
    first.register(chain()).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for handle in 0..HANDLES {
        let store = fixture.store().await;
        store.register(chain()).await.unwrap();
        for task in 0..2 {
            let store = store.clone();
            tasks.spawn(async move {
                for n in 0..EVENTS {
                    let stream = format!("s-{}", (n + task) % 3);
                    let number = event("Counted", json!({ "n": n * 100 + handle * 10 + task }));
                    append(&store, &stream, [number]).await;
                }
            });
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let expected = chains(&first).await;
    assert_eq!(expected.len(), 3);
    assert_eq!(read_all(&first).await.len() as u64, HANDLES * 2 * EVENTS);
    assert_eq!(stored_chains(&first).await, expected);
}

async fn catch_up_documents_are_the_fold_of_the_log(fixture: Fixture) {
    let store = fixture.store().await;
    for n in 0..50 {
        let stream = format!("s-{}", n % 7);
        append(&store, &stream, [event("Counted", json!({ "n": n })), event("Other", json!(n))])
            .await;
    }
    let chain = Projection::document("chain", 1, Chain).shards(3).build().unwrap();
    caught_up(&store, &chain).await;
    assert_eq!(stored_chains(&store).await, chains(&store).await);
    append(&store, "s-0", [event("Counted", json!({ "n": 99 }))]).await;
    caught_up(&store, &chain).await;
    assert_eq!(stored_chains(&store).await, chains(&store).await);
}

async fn none_deletes_the_document(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(orders().inline().build().unwrap()).await.unwrap();
    let later = Projection::document("later", 1, Orders).build().unwrap();
    let cancelled = || NewEvent::from_event(&OrderEvent::Cancelled).unwrap();
    append(&store, "order-1", [placed("ada", "Bern", 1)]).await;
    append(&store, "order-1", [cancelled()]).await;
    append(&store, "order-2", [cancelled(), placed("bob", "Ghent", 2)]).await;
    append(&store, "order-3", [placed("eve", "Delft", 3), cancelled()]).await;
    caught_up(&store, &later).await;
    for name in ["orders", "later"] {
        let found = store.documents::<Order>(name).collect().await.unwrap();
        let keys: Vec<&str> = found.iter().map(|found| found.key.as_str()).collect();
        assert_eq!(keys, ["order-2"], "{name}");
    }
    append(&store, "order-1", [placed("ada", "Bern", 4)]).await;
    let again = store.documents::<Order>("orders").get("order-1").await.unwrap();
    assert_eq!(again, Some(order("ada", "Bern", 4, false)));
}

struct Turnover;

impl DocumentProjection for Turnover {
    type Event = OrderEvent;
    type Document = i64;

    fn evolve(&self, sum: Option<i64>, event: &OrderEvent, _: &RecordedEvent) -> Option<i64> {
        match event {
            OrderEvent::Placed { amount, .. } => Some(sum.unwrap_or(0) + amount),
            OrderEvent::Paid { .. } | OrderEvent::Cancelled => sum,
        }
    }
}

async fn documents_can_have_a_key_of_their_own(fixture: Fixture) {
    let store = fixture.store().await;
    let by_city = Projection::document("by_city", 1, Turnover)
        .key(|event, _| match event {
            OrderEvent::Placed { city, .. } => Some(city.to_lowercase()),
            OrderEvent::Paid { .. } | OrderEvent::Cancelled => None,
        })
        .shards(2)
        .build()
        .unwrap();
    let by_customer = Projection::document("by_customer", 1, Turnover)
        .events(["Placed"])
        .key_fields(["data.customer", "data.city"])
        .build()
        .unwrap();
    append(&store, "order-1", [placed("ada", "Bern", 1), paid(1)]).await;
    append(&store, "order-2", [placed("bob", "BERN", 2)]).await;
    append(&store, "order-3", [placed("ada", "Bern", 4)]).await;
    append(&store, "order-4", [placed("ada", "Ghent", 8)]).await;
    let sums = async |projection: &Projection| {
        caught_up(&store, projection).await;
        let found = store.documents::<i64>(projection.name()).collect().await.unwrap();
        found.into_iter().map(|found| (found.key, found.document)).collect::<Vec<_>>()
    };
    assert_eq!(sums(&by_city).await, [("bern".into(), 7), ("ghent".into(), 8)]);
    let wanted = [(r#"["ada","Bern"]"#, 5), (r#"["ada","Ghent"]"#, 8), (r#"["bob","BERN"]"#, 2)];
    assert_eq!(sums(&by_customer).await, wanted.map(|(key, sum)| (key.to_owned(), sum)));
}

async fn documents_are_found_by_their_fields(fixture: Fixture) {
    let store = fixture.store().await;
    let indexed = orders().inline().index("customer.city").index("paid").build().unwrap();
    store.register(indexed).await.unwrap();
    for (number, city, amount) in [(1, "Bern", 1), (2, "Ghent", 2), (3, "Bern", 3), (4, "Bern", 1)]
    {
        append(&store, &format!("order-{number}"), [placed("ada", city, amount)]).await;
    }
    append(&store, "order-3", [paid(3)]).await;
    let read = || store.documents::<Order>("orders");
    let keys = |found: Vec<everfold::Document<Order>>| -> Vec<String> {
        found.into_iter().map(|found| found.key).collect()
    };
    let in_bern = keys(read().find("customer.city", "Bern").collect().await.unwrap());
    assert_eq!(in_bern, ["order-1", "order-3", "order-4"]);
    let paid =
        keys(read().find("customer.city", "Bern").find("paid", true).collect().await.unwrap());
    assert_eq!(paid, ["order-3"]);
    // Without an index; a number is not the text that looks like it, nor a boolean.
    assert_eq!(keys(read().find("amount", 1).collect().await.unwrap()), ["order-1", "order-4"]);
    assert!(read().find("amount", "1").collect().await.unwrap().is_empty());
    assert!(read().find("amount", true).collect().await.unwrap().is_empty());
    assert!(read().find("paid", 1).collect().await.unwrap().is_empty());
    assert!(read().find("customer.nobody", 1).collect().await.unwrap().is_empty());
    let limited = read().find("customer.city", "Bern").after("order-1").limit(1);
    assert_eq!(keys(limited.collect().await.unwrap()), ["order-3"]);
    let got = read().find("customer.city", "Ghent").get_many(["order-1", "order-2"]).await.unwrap();
    assert_eq!(keys(got), ["order-2"]);

    for (read, part) in [
        (read().find("customer'city", "x"), "the path"),
        (read().find("customer", json!({ "city": "Bern" })), "only texts, numbers and booleans"),
    ] {
        let error = read.collect().await.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[tokio::test]
async fn postgres_finds_documents_through_the_index() {
    const STREAMS: usize = 2_000;
    let fixture = Fixture::postgres().await;
    let store = fixture.store().await;
    let appends = (0..STREAMS).map(|n| {
        let placed = placed("ada", &format!("city {n}"), 1);
        everfold::StreamAppend::new(format!("order-{n}"), ExpectedVersion::Any, [placed])
    });
    store.append_many(appends).await.unwrap();
    caught_up(&store, &orders().index("customer.city").build().unwrap()).await;
    // How often an index was used is known to others once a session ends.
    let client = fixture.database().connect().await;
    client.batch_execute("ANALYZE").await.unwrap();
    store.close().await;
    let store = fixture.store().await;
    let read = store.documents::<Order>("orders").find("customer.city", "city 1234");
    let found = read.collect().await.unwrap();
    assert_eq!(found.iter().map(|found| &*found.key).collect::<Vec<_>>(), ["order-1234"]);
    store.close().await;
    let uses = "SELECT idx_scan FROM pg_stat_user_indexes \
                WHERE relname = 'orders' AND pg_get_indexdef(indexrelid) LIKE '%customer%'";
    let used = async || client.query_one(uses, &[]).await.unwrap().get::<_, i64>(0) > 0;
    eventually("the index is used", Duration::from_secs(30), used).await;
}

async fn documents_are_read_in_pages_in_the_order_of_keys(fixture: Fixture) {
    const STREAMS: usize = 1_203;
    let store = fixture.store().await;
    let chain = Projection::document("chain", 1, Chain).build().unwrap();
    // Capitals before small letters, whatever the database's language says.
    let name = |n: usize| format!("{}{n}", if n.is_multiple_of(2) { 's' } else { 'S' });
    let appends = (0..STREAMS).map(|n| {
        let number = event("Counted", json!({ "n": n }));
        everfold::StreamAppend::new(name(n), ExpectedVersion::Any, [number])
    });
    store.append_many(appends).await.unwrap();
    caught_up(&store, &chain).await;
    let mut wanted: Vec<String> = (0..STREAMS).map(name).collect();
    wanted.sort_unstable();

    let mut documents = store.documents::<u64>("chain").stream();
    let mut found = Vec::new();
    while let Some(document) = documents.next().await.unwrap() {
        found.push(document.key);
    }
    assert_eq!(found, wanted);
    let some =
        store.documents::<u64>("chain").after(&wanted[99]).limit(700).collect().await.unwrap();
    let some: Vec<String> = some.into_iter().map(|document| document.key).collect();
    assert_eq!(some, wanted[100..800]);
    let many = store.documents::<u64>("chain").get_many(wanted.iter().rev()).await.unwrap();
    assert!(many.iter().map(|document| &document.key).eq(&wanted));
    assert!(store.documents::<u64>("chain").limit(0).collect().await.unwrap().is_empty());
}

/// The shape that orders have in the next version of the code.
#[derive(Debug, Serialize, Deserialize)]
struct NextOrder {
    currency: String,
}

struct NextOrders;

impl DocumentProjection for NextOrders {
    type Event = OrderEvent;
    type Document = NextOrder;

    fn evolve(
        &self,
        order: Option<NextOrder>,
        _: &OrderEvent,
        _: &RecordedEvent,
    ) -> Option<NextOrder> {
        Some(order.unwrap_or(NextOrder { currency: "EUR".to_owned() }))
    }
}

async fn document_that_does_not_fit_stops_the_projection_and_says_what_to_do(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "order-1", [placed("ada", "Bern", 1)]).await;
    caught_up(&store, &orders().settings(impatient()).build().unwrap()).await;
    // The code was changed, the version was not.
    let store = fixture.store().await;
    let changed =
        Projection::document("orders", 1, NextOrders).settings(impatient()).build().unwrap();
    append(&store, "order-1", [paid(1)]).await;
    let reason = failed(&store, &changed).await;
    assert!(reason.contains("missing field `currency`"), "{reason}");
    assert!(reason.contains("raise the version of \"orders\" and rebuild it"), "{reason}");
    // What was there is still there.
    let kept = fixture.store().await.documents::<Order>("orders").get("order-1").await.unwrap();
    assert_eq!(kept, Some(order("ada", "Bern", 1, false)));
}

/// Settings with which a projection that fails is given up at once.
fn impatient() -> everfold::ProjectionSettings {
    let mut settings = everfold::ProjectionSettings::default();
    settings.retries = 0;
    settings
}

async fn document_that_does_not_fit_the_reader_is_an_error_with_its_key(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(orders().inline().build().unwrap()).await.unwrap();
    append(&store, "order-1", [placed("ada", "Bern", 1)]).await;
    let error = store.documents::<NextOrder>("orders").get("order-1").await.unwrap_err();
    let ProjectionError::Document { projection, key, .. } = &error else { panic!("{error:?}") };
    assert_eq!((projection.as_str(), key.as_str()), ("orders", "order-1"));
    assert!(error.to_string().contains("missing field `currency`"), "{error}");
}

struct Fragile;

impl DocumentProjection for Fragile {
    type Event = OrderEvent;
    type Document = u32;

    fn evolve(&self, seen: Option<u32>, event: &OrderEvent, _: &RecordedEvent) -> Option<u32> {
        assert!(!matches!(event, OrderEvent::Paid { amount: 13 }), "thirteen is too much");
        Some(seen.unwrap_or(0) + 1)
    }
}

async fn panic_in_evolve_stops_only_its_own_projection(fixture: Fixture) {
    let store = fixture.store().await;
    let fragile = Projection::document("fragile", 1, Fragile).settings(impatient());
    let both = [fragile.build().unwrap(), orders().build().unwrap()];
    append(&store, "order-1", [placed("ada", "Bern", 20), paid(13), paid(7)]).await;
    append(&store, "order-2", [placed("bob", "Ghent", 1)]).await;
    let error = Runner::new(&store).projections(both).run_once().await.unwrap_err();
    let ProjectionError::Failed { projection, reason } = error else { panic!("{error:?}") };
    assert_eq!(projection, "fragile");
    assert!(reason.contains("evolve panicked: thirteen is too much"), "{reason}");
    assert!(reason.contains("position 2"), "{reason}");
    let paid_up = store.documents::<Order>("orders").get("order-1").await.unwrap();
    assert_eq!(paid_up, Some(order("ada", "Bern", 0, true)));
    // What stands before the event is applied, nothing behind it.
    let seen = store.documents::<u32>("fragile").collect().await.unwrap();
    assert_eq!(
        seen.iter().map(|seen| (&*seen.key, seen.document)).collect::<Vec<_>>(),
        [("order-1", 1)]
    );
}

async fn panic_in_an_inline_evolve_fails_the_append_and_names_the_projection(fixture: Fixture) {
    let store = fixture.store().await;
    let fragile = Projection::document("fragile", 1, Fragile).inline().on_error(OnError::Stop);
    store.register(fragile.build().unwrap()).await.unwrap();
    append(&store, "order-1", [placed("ada", "Bern", 20)]).await;
    let refused = store.append("order-1", ExpectedVersion::Any, [paid(13)]).await.unwrap_err();
    let said = refused.to_string();
    assert!(said.contains("fragile") && said.contains("thirteen is too much"), "{said}");
    assert_eq!(store.stream_version("order-1").await.unwrap().0, 1, "nothing was stored");
    append(&store, "order-1", [paid(7)]).await;
    let seen = store.documents::<u32>("fragile").get("order-1").await.unwrap();
    assert_eq!(seen, Some(2));
}

async fn event_types_that_nobody_knows_are_passed_over(fixture: Fixture) {
    let store = fixture.store().await;
    // Asked for by name, and yet no variant of the enum.
    let wide = orders().events(["Placed", "Paid", "Cancelled", "Shipped"]).build().unwrap();
    append(&store, "order-1", [placed("ada", "Bern", 1)]).await;
    append(&store, "order-1", [event("Shipped", json!({})), event("Lost", Value::Null)]).await;
    append(&store, "order-2", [event("Shipped", json!({}))]).await;
    caught_up(&store, &wide).await;
    let found = store.documents::<Order>("orders").collect().await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].document, order("ada", "Bern", 1, false));
}

async fn documents_of_nobody_are_an_error_that_says_so(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(orders().inline().build().unwrap()).await.unwrap();
    assert_eq!(store.documents::<Order>("orders").get("nobody").await.unwrap(), None);
    let error = store.documents::<Order>("order").get("order-1").await.unwrap_err();
    assert!(matches!(error, ProjectionError::Unknown { .. }), "{error:?}");
    assert!(error.to_string().contains("did you mean \"orders\"?"), "{error}");
    // Another handle asks the registry.
    let other = fixture.store().await;
    assert_eq!(other.documents::<Order>("orders").get("nobody").await.unwrap(), None);
    append(&store, "order-1", [placed("ada", "Bern", 1)]).await;
    let late = Projection::document("late", 1, Orders).inline().build().unwrap();
    store.register(late).await.unwrap();
    let error = store.documents::<Order>("late").get("order-1").await.unwrap_err().to_string();
    assert!(error.contains("cannot be read yet, it is building"), "{error}");
}
