//! The projections of `examples/bank`: late bookings and reversals, by account and by day, against a
//! plain recomputation from the log.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use everfold::testing::ProjectionTest;
use everfold::{Projection, RecordedEvent, Runner, Store};
use everfold_testkit::Seed;
use serde_json::{Value, json};

use crate::fixture::{Fixture, append, event, on_every_store, read_all};

const ACCOUNTS: u64 = 6;
const WRITERS: u64 = 3;
const BOOKINGS: u64 = 60;

on_every_store! {
    books_equal_a_recomputation_from_the_log,
    appended_booking_is_in_the_balance_at_once,
}

fn projections() -> Vec<Projection> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/bank");
    Projection::load_all(project).expect("the example is right")
}

fn named(name: &str) -> Projection {
    projections().into_iter().find(|projection| projection.name() == name).expect("it is there")
}

async fn books_equal_a_recomputation_from_the_log(fixture: Fixture) {
    let store = fixture.store().await;
    let runner = Runner::new(&store).projections(projections()).start().await.unwrap();
    let mut seed = Seed::from_env_or_random();
    let writers = (0..WRITERS).map(|writer| write(store.clone(), writer, seed.fork()));
    futures::future::join_all(writers).await;
    runner.stop().await;
    Runner::new(&store).projections(projections()).run_once().await.unwrap();

    let log = read_all(&store).await;
    assert!(log.len() as u64 >= WRITERS * BOOKINGS);
    let Books { balances, days } = Books::of(&log);
    assert!(days.values().any(|day| day.reversals > 0), "the load has reversals");
    let found = fixture.rows("SELECT account, cents, version FROM read_model.balance").await;
    assert_eq!(sorted(found), sorted(balances.iter().map(Books::balance_row)));
    let sql = "SELECT account, day, bookings, reversals, cents FROM read_model.daily_totals";
    assert_eq!(sorted(fixture.rows(sql).await), sorted(days.iter().map(Books::day_row)));
}

async fn appended_booking_is_in_the_balance_at_once(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(named("balance")).await.unwrap();
    append(&store, "account-1", [booked("Deposited", "t-1", 3, 500)]).await;
    let sql = "SELECT cents, version FROM read_model.balance";
    assert_eq!(fixture.rows(sql).await, [[json!(500), json!(1)]]);
    append(&store, "account-1", [booked("Withdrawn", "t-2", 2, 70), reversed("t-1", -500)]).await;
    assert_eq!(fixture.rows(sql).await, [[json!(-70), json!(3)]]);
    // Stopped by its policy, also where another event of the append has an amount.
    let bad = [booked("Deposited", "t-3", 3, 1), event("Deposited", json!({}))];
    let refused = store.append("account-1", everfold::ExpectedVersion::Any, bad).await.unwrap_err();
    assert!(refused.to_string().contains("balance"), "{refused}");
    assert_eq!(fixture.rows(sql).await, [[json!(-70), json!(3)]]);
}

/// The same in other batches, after crashes, inline, in other shards, with the streams in another order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn days_do_not_depend_on_how_events_come() {
    let test = ProjectionTest::new(named("daily_totals"))
        .given_events("account-1", [booked("Deposited", "t-1", 3, 500)])
        .given_events("account-2", [booked("Deposited", "t-1", 3, 40), reversed("t-1", -40)])
        .given_events("account-1", [booked("Withdrawn", "t-2", 1, 30), booked("Deposited", "t-3", 3, 7)])
        .given_events("account-1", [reversed("t-2", 30)])
        .then_rows(
            "SELECT account, day, bookings, reversals, cents FROM read_model.daily_totals ORDER BY 1, 2",
            [
                ("account-1", "2026-11-01", 1, 1, 0),
                ("account-1", "2026-11-03", 2, 0, 507),
                ("account-2", "2026-11-03", 1, 1, 0),
            ],
        );
    test.clone().run().await.unwrap();
    let fixture = Fixture::postgres().await;
    test.on(&fixture.url).run().await.unwrap();
}

fn booked(kind: &str, transaction: &str, day: u64, amount: i64) -> everfold::NewEvent {
    let booked_on = format!("2026-11-{day:02}");
    event(kind, json!({ "transaction": transaction, "booked_on": booked_on, "amount": amount }))
}

fn reversed(transaction: &str, amount: i64) -> everfold::NewEvent {
    event("Reversed", json!({ "transaction": transaction, "amount": amount }))
}

/// Books on accounts that other writers book on too; days go back and forth, every fourth booking or
/// so is reversed, some of them in the same append and some much later.
async fn write(store: Store, writer: u64, mut seed: Seed) {
    let mut open: Vec<(String, String, i64)> = Vec::new();
    for number in 0..BOOKINGS {
        let account = format!("account-{}", seed.below(ACCOUNTS));
        let transaction = format!("t-{writer}-{number}");
        let (day, cents) = (1 + seed.below(9), 1 + seed.below(10_000) as i64);
        let (kind, change) = match seed.below(2) {
            0 => ("Deposited", cents),
            _ => ("Withdrawn", -cents),
        };
        let mut events = vec![booked(kind, &transaction, day, cents)];
        match seed.below(8) {
            0 => events.push(reversed(&transaction, -change)),
            _ => open.push((account.clone(), transaction, change)),
        }
        append(&store, &account, events).await;
        if seed.below(8) == 0 {
            let (account, transaction, change) =
                open.swap_remove(seed.below(open.len() as u64) as usize);
            append(&store, &account, [reversed(&transaction, -change)]).await;
        }
    }
}

/// What the books must say, event by event in the order of the log.
#[derive(Default)]
struct Books {
    /// Cents and version of each account.
    balances: BTreeMap<String, (i64, u64)>,
    days: BTreeMap<(String, String), Day>,
}

#[derive(Default)]
struct Day {
    bookings: u64,
    reversals: u64,
    cents: i64,
}

impl Books {
    fn of(log: &[RecordedEvent]) -> Books {
        let mut books = Books::default();
        let mut booked: HashMap<(String, String), (String, i64)> = HashMap::new();
        for event in log {
            let data: Value = event.data_as().unwrap();
            let account = event.stream_id.to_string();
            let text = |name: &str| data[name].as_str().unwrap().to_owned();
            let amount = data["amount"].as_i64().unwrap();
            let transaction = (account.clone(), text("transaction"));
            let change = match event.event_type.as_str() {
                "Withdrawn" => -amount,
                _ => amount,
            };
            let balance = books.balances.entry(account.clone()).or_default();
            *balance = (balance.0 + change, event.version.0);
            let (day, bookings, reversals) = match event.event_type.as_str() {
                "Reversed" => {
                    let (day, cents) = booked[&transaction].clone();
                    assert_eq!(change, -cents);
                    (day, 0, 1)
                }
                _ => {
                    booked.insert(transaction, (text("booked_on"), change));
                    (text("booked_on"), 1, 0)
                }
            };
            let day = books.days.entry((account, day)).or_default();
            day.bookings += bookings;
            day.reversals += reversals;
            day.cents += change;
        }
        books
    }

    fn balance_row((account, (cents, version)): (&String, &(i64, u64))) -> Vec<Value> {
        vec![json!(account), json!(cents), json!(version)]
    }

    fn day_row(((account, day), totals): (&(String, String), &Day)) -> Vec<Value> {
        let Day { bookings, reversals, cents } = totals;
        vec![json!(account), json!(day), json!(bookings), json!(reversals), json!(cents)]
    }
}

fn sorted(rows: impl IntoIterator<Item = Vec<Value>>) -> Vec<String> {
    let mut rows: Vec<String> = rows.into_iter().map(|row| Value::Array(row).to_string()).collect();
    rows.sort();
    rows
}
