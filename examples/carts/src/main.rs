//! Read models in Rust, and a change to one of them while customers go on.
//!
//! `cargo run --bin carts [URL]`, by default on a file in a temp folder.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use carts::{CartEvent, Details, Status, Summary, Totals, details, summary_1, summary_2};
use everfold::{
    Comparison, Difference, ExpectedVersion, NewEvent, Position, RebuildOptions, Runner, Store,
    VerifyOptions,
};
use serde_json::Value;
use tokio::task::JoinHandle;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (store, _folder) = carts::open().await?;

    println!("-- version 1");
    let runner = Runner::new(&store).projections([summary_1()?, details()?]).start().await?;
    let (tea, cup) = (added("tea", 2, 450), added("cup", 1, 900));
    append(&store, "cart-1", [tea, cup, CartEvent::CheckedOut { city: "Bern".into() }]).await?;
    let last = append(&store, "cart-2", [added("pot", 1, 3900)]).await?;
    // Inline: it is there with the append.
    show_totals(&store).await?;
    // Catch-up: wait until it has come as far as the append.
    store.wait_for("cart_details", last, Duration::from_secs(30)).await?;
    let cart = store.documents::<Details>("cart_details").get("cart-1").await?.unwrap_or_default();
    for line in &cart.lines {
        println!("cart-1 has {} x {} for {} each", line.quantity, line.sku, line.cents);
    }
    println!("cart-1 goes to {}", cart.city.unwrap_or_default());

    println!("-- version 2: what would happen?");
    for change in store.plan(vec![summary_2()?, details()?]).await?.changes {
        println!("{}: {}", change.name, change.action);
    }

    println!("-- build it beside version 1, while customers go on");
    runner.stop().await; // the new release, which has the code of both versions
    let projections = [summary_1()?, summary_2()?, details()?];
    let runner = Runner::new(&store).projections(projections).start().await?;
    let customers = Customers::come(&store).await?;
    let mut build = RebuildOptions::default();
    build.promote = false;
    let built = store.rebuild("cart_summary", build).await?.finish().await?;
    show_totals(&store).await?;
    let comparison = built.comparison.ok_or("both versions are compared")?;
    let wrong = totals_that_differ(&comparison);
    println!(
        "{} carts compared: {} gain a status, the totals of {wrong} differ",
        comparison.compared, comparison.differences
    );

    println!("-- promote it");
    store.promote("cart_summary", RebuildOptions::default()).await?.finish().await?;
    show_totals(&store).await?;
    show_open(&store).await?;

    println!("-- roll back: version 1 was fed all the time");
    store.rollback("cart_summary", RebuildOptions::default()).await?.finish().await?;
    show_totals(&store).await?;

    println!("-- and forward again");
    store.promote("cart_summary", RebuildOptions::default()).await?.finish().await?;
    show_totals(&store).await?;
    show_open(&store).await?;
    let (bought, last) = customers.go().await?;
    store.wait_for("cart_summary", last, Duration::from_secs(30)).await?;
    let counted = store.documents::<Totals>("cart_summary").get("cart-3").await?;
    assert_eq!(counted.map(|cart| cart.item_count), Some(bought), "nothing is lost or doubled");
    println!("what customers bought meanwhile is all there");
    let verified = store.verify("cart_summary", VerifyOptions::default()).await?;
    println!("verified against the log: {} of {} differ", verified.differences, verified.compared);
    runner.stop().await;
    Ok(())
}

fn added(sku: &str, quantity: u32, cents: u64) -> CartEvent {
    CartEvent::ItemAdded { sku: sku.to_owned(), quantity, cents }
}

async fn append<const N: usize>(
    store: &Store,
    cart: &str,
    events: [CartEvent; N],
) -> Result<Position, everfold::Error> {
    let events = events.iter().map(NewEvent::from_event).collect::<Result<Vec<_>, _>>()?;
    Ok(store.append(cart, ExpectedVersion::Any, events).await?.last_position)
}

/// What readers see, who may know nothing but version 1.
async fn show_totals(store: &Store) -> Result<(), Box<dyn Error>> {
    let version = store.projection("cart_summary").await?.version;
    let cart = store.documents::<Totals>("cart_summary").get("cart-1").await?.unwrap_or_default();
    println!("version {version}: cart-1 has {} items for {}", cart.item_count, cart.amount);
    Ok(())
}

/// What only version 2 can tell.
async fn show_open(store: &Store) -> Result<(), Box<dyn Error>> {
    let open = store.documents::<Summary>("cart_summary").find("status", Status::Open);
    for cart in open.collect().await? {
        let products: Vec<&str> = cart.document.items.keys().map(String::as_str).collect();
        println!("{} is open: {}", cart.key, products.join(", "));
    }
    Ok(())
}

/// All carts differ, because they gain fields: how many do in the fields that both versions have?
fn totals_that_differ(comparison: &Comparison) -> usize {
    let totals = |cart: &Option<Value>| -> Option<Totals> {
        serde_json::from_value(cart.as_ref()?["document"].clone()).ok()
    };
    let same = |row: &Difference| {
        let before = totals(&row.expected);
        before.is_some() && before == totals(&row.found)
    };
    comparison.examples.iter().filter(|row| !same(row)).count()
}

/// Customers who fill `cart-3` until they are told to go.
struct Customers {
    gone: Arc<AtomicBool>,
    task: JoinHandle<Result<(u32, Position), everfold::Error>>,
}

impl Customers {
    async fn come(store: &Store) -> Result<Customers, everfold::Error> {
        let mut last = append(store, "cart-3", [added("tea", 1, 450)]).await?;
        let (gone, store) = (Arc::new(AtomicBool::new(false)), store.clone());
        let told = Arc::clone(&gone);
        let task = tokio::spawn(async move {
            let mut bought = 1;
            while !told.load(Ordering::Relaxed) {
                last = append(&store, "cart-3", [added("tea", 1, 450)]).await?;
                bought += 1;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Ok((bought, last))
        });
        Ok(Customers { gone, task })
    }

    /// How much they bought, and the position of the last of it.
    async fn go(self) -> Result<(u32, Position), Box<dyn Error>> {
        self.gone.store(true, Ordering::Relaxed);
        Ok(self.task.await??)
    }
}
