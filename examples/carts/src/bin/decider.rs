//! The write side: commands, rules that refuse some of them, writers that get in each other's way, and
//! snapshots, which spare reading a long stream from its start.
//!
//! `cargo run --bin decider [URL]`, by default on a file in a temp folder.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use carts::{Cart, CartEvent, CartRules, Command, Refusal};
use everfold::{CommandError, CommandHandler, Decider, SnapshotPolicy};

/// The rules, counting the events that are folded: to show what a snapshot spares.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

impl Decider for Counting {
    type Command = Command;
    type Event = CartEvent;
    type State = Cart;
    type Error = Refusal;

    fn initial(&self) -> Cart {
        CartRules.initial()
    }

    fn evolve(&self, cart: Cart, event: &CartEvent) -> Cart {
        self.0.fetch_add(1, Ordering::Relaxed);
        CartRules.evolve(cart, event)
    }

    fn decide(&self, cart: &Cart, command: &Command) -> Result<Vec<CartEvent>, Refusal> {
        CartRules.decide(cart, command)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (store, _folder) = carts::open().await?;
    let rules = Counting::default();
    let carts = CommandHandler::new(store.clone(), rules.clone())
        .snapshots(SnapshotPolicy::every(10, "cart").state_version(1));

    // A rule refuses: nothing is stored.
    if let Err(CommandError::Refused(reason)) =
        carts.handle("cart-1", &Command::CheckOut("Bern")).await
    {
        println!("refused: {reason}");
    }

    // Eight put three pieces each into one cart, which holds 20. All of them read it, one append wins,
    // the others meet a version conflict; the handler reads what came since, and decides again.
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let carts = carts.clone();
            tokio::spawn(async move { carts.handle("cart-1", &Command::Add("tea", 3, 450)).await })
        })
        .collect();
    let (mut added, mut refused) = (0, 0);
    for task in tasks {
        match task.await? {
            Ok(_) => added += 1,
            Err(CommandError::Refused(Refusal::Full)) => refused += 1,
            Err(error) => return Err(error.into()),
        }
    }
    println!("8 at once: {added} were carried out, {refused} refused: {}", Refusal::Full);

    // A long history: after every tenth event the state is kept.
    for _ in 0..20 {
        carts.handle("cart-1", &Command::Remove("tea", 1)).await?;
        carts.handle("cart-1", &Command::Add("tea", 1, 450)).await?;
    }
    rules.0.store(0, Ordering::Relaxed);
    let loaded = carts.load("cart-1").await?;
    let folded = rules.0.swap(0, Ordering::Relaxed);
    println!("version {}, {} pieces: {folded} events read", loaded.version, loaded.state.pieces());

    let without = CommandHandler::new(store, rules.clone());
    let same = without.load("cart-1").await?;
    assert_eq!(same, loaded, "a snapshot is a shortcut, nothing else");
    println!("the same without snapshots: {} events read", rules.0.load(Ordering::Relaxed));

    carts.handle("cart-1", &Command::CheckOut("Bern")).await?;
    if let Err(CommandError::Refused(reason)) =
        carts.handle("cart-1", &Command::Remove("tea", 1)).await
    {
        println!("refused: {reason}");
    }
    Ok(())
}
