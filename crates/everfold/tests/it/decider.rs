//! Commands through a decider: load, decide, append, try again; with and without snapshots.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use everfold::{
    CommandError, CommandHandler, Decider, ExpectedVersion, Metadata, NewEvent, SnapshotPolicy,
    Store, Version,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::fixture::{Fixture, append, event, on_every_store, read_stream};

on_every_store! {
    command_is_decided_on_the_state_of_the_stream,
    refused_command_changes_nothing,
    decision_without_events_appends_nothing,
    racing_commands_are_all_carried_out,
    command_gives_up_after_its_tries,
    metadata_goes_to_every_event,
    events_of_unknown_types_do_not_disturb,
    snapshot_saves_reading_the_whole_stream,
    snapshot_of_another_shape_is_thrown_away,
    snapshot_ahead_of_the_stream_is_not_believed,
}

#[derive(Debug, Serialize, Deserialize)]
enum AccountEvent {
    Deposited { amount: u64 },
    Withdrawn { amount: u64 },
}

enum Command {
    Deposit(u64),
    Withdraw(u64),
    Nothing,
}

/// Counts how many events it folded, so that tests see what was read.
#[derive(Default, Clone)]
struct Account {
    folded: Arc<AtomicU64>,
}

impl Account {
    fn take_folded(&self) -> u64 {
        self.folded.swap(0, Ordering::Relaxed)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Balance {
    money: u64,
}

impl Decider for Account {
    type Command = Command;
    type Event = AccountEvent;
    type State = Balance;
    type Error = String;

    fn initial(&self) -> Balance {
        Balance { money: 0 }
    }

    fn evolve(&self, balance: Balance, event: &AccountEvent) -> Balance {
        self.folded.fetch_add(1, Ordering::Relaxed);
        let money = match event {
            AccountEvent::Deposited { amount } => balance.money + amount,
            AccountEvent::Withdrawn { amount } => balance.money - amount,
        };
        Balance { money }
    }

    fn decide(&self, balance: &Balance, command: &Command) -> Result<Vec<AccountEvent>, String> {
        match *command {
            Command::Deposit(amount) => Ok(vec![AccountEvent::Deposited { amount }]),
            Command::Withdraw(amount) if amount > balance.money => {
                Err(format!("{amount} is more than {}", balance.money))
            }
            Command::Withdraw(amount) => Ok(vec![AccountEvent::Withdrawn { amount }]),
            Command::Nothing => Ok(vec![]),
        }
    }
}

fn accounts(store: &Store) -> CommandHandler<Account> {
    CommandHandler::new(store.clone(), Account::default())
}

async fn command_is_decided_on_the_state_of_the_stream(fixture: Fixture) {
    let handler = accounts(&fixture.store().await);
    let deposited = handler.handle("a", &Command::Deposit(50)).await.unwrap();
    assert_eq!((deposited.state.money, deposited.version), (50, Version(1)));
    let withdrawn = handler.handle("a", &Command::Withdraw(20)).await.unwrap();
    assert_eq!((withdrawn.state.money, withdrawn.version), (30, Version(2)));
    let loaded = handler.load("a").await.unwrap();
    assert_eq!((loaded.state.money, loaded.version), (30, Version(2)));
    let other = handler.load("b").await.unwrap();
    assert_eq!((other.state.money, other.version), (0, Version::NONE));
}

async fn refused_command_changes_nothing(fixture: Fixture) {
    let store = fixture.store().await;
    let handler = accounts(&store);
    handler.handle("a", &Command::Deposit(5)).await.unwrap();
    match handler.handle("a", &Command::Withdraw(6)).await {
        Err(CommandError::Refused(reason)) => assert_eq!(reason, "6 is more than 5"),
        other => panic!("{other:?}"),
    }
    assert_eq!(store.stream_version("a").await.unwrap(), Version(1));
}

async fn decision_without_events_appends_nothing(fixture: Fixture) {
    let store = fixture.store().await;
    let handled = accounts(&store).handle("a", &Command::Nothing).await.unwrap();
    assert_eq!((handled.version, handled.appended), (Version::NONE, None));
}

async fn racing_commands_are_all_carried_out(fixture: Fixture) {
    const TASKS: u64 = 6;
    const EACH: u64 = 10;
    let store = fixture.store().await;
    let handler = accounts(&store).tries_max(1_000).snapshots(SnapshotPolicy::every(7, "account"));
    let tasks = (0..TASKS).map(|_| {
        let handler = handler.clone();
        tokio::spawn(async move {
            for _ in 0..EACH {
                handler.handle("a", &Command::Deposit(1)).await.unwrap();
            }
        })
    });
    for task in futures::future::join_all(tasks).await {
        task.unwrap();
    }
    assert_eq!(handler.load("a").await.unwrap().state.money, TASKS * EACH);
    assert_eq!(accounts(&store).load("a").await.unwrap().state.money, TASKS * EACH);
    assert_eq!(store.stream_version("a").await.unwrap(), Version(TASKS * EACH));
}

/// A decider that appends behind its own back, so that each of its tries meets a conflict.
struct Interrupted(Store);

impl Decider for Interrupted {
    type Command = ();
    type Event = AccountEvent;
    type State = ();
    type Error = String;

    fn initial(&self) {}

    fn evolve(&self, (): (), _: &AccountEvent) {}

    fn decide(&self, (): &(), (): &()) -> Result<Vec<AccountEvent>, String> {
        let store = self.0.clone();
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                let event = NewEvent::from_event(&AccountEvent::Deposited { amount: 1 }).unwrap();
                store.append("a", ExpectedVersion::Any, [event]).await.unwrap();
            });
        });
        Ok(vec![AccountEvent::Deposited { amount: 100 }])
    }
}

async fn command_gives_up_after_its_tries(fixture: Fixture) {
    let store = fixture.store().await;
    let handler = CommandHandler::new(store.clone(), Interrupted(store.clone())).tries_max(3);
    match handler.handle("a", &()).await {
        Err(CommandError::Contended { stream, tries }) => {
            assert_eq!((stream.as_str(), tries), ("a", 3));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(store.stream_version("a").await.unwrap(), Version(3));
}

async fn metadata_goes_to_every_event(fixture: Fixture) {
    let store = fixture.store().await;
    let metadata = Metadata::new().with_correlation_id("request-9");
    accounts(&store).handle_with("a", &Command::Deposit(1), metadata.clone()).await.unwrap();
    assert_eq!(read_stream(&store, "a").await[0].metadata().unwrap(), metadata);
}

async fn events_of_unknown_types_do_not_disturb(fixture: Fixture) {
    let store = fixture.store().await;
    let handler = accounts(&store);
    handler.handle("a", &Command::Deposit(5)).await.unwrap();
    append(&store, "a", [event("Audited", json!("by somebody else"))]).await;
    let handled = handler.handle("a", &Command::Withdraw(5)).await.unwrap();
    assert_eq!((handled.state.money, handled.version), (0, Version(3)));
}

async fn snapshot_saves_reading_the_whole_stream(fixture: Fixture) {
    let store = fixture.store().await;
    let account = Account::default();
    let handler = CommandHandler::new(store.clone(), account.clone())
        .snapshots(SnapshotPolicy::every(10, "account"));
    for _ in 0..25 {
        handler.handle("a", &Command::Deposit(1)).await.unwrap();
    }
    account.take_folded();
    assert_eq!(handler.load("a").await.unwrap().state.money, 25);
    assert_eq!(account.take_folded(), 5, "only the events after the snapshot at 20 are folded");
}

async fn snapshot_of_another_shape_is_thrown_away(fixture: Fixture) {
    let store = fixture.store().await;
    let account = Account::default();
    let with = |policy| CommandHandler::new(store.clone(), account.clone()).snapshots(policy);
    let old = with(SnapshotPolicy::every(5, "account"));
    for _ in 0..10 {
        old.handle("a", &Command::Deposit(1)).await.unwrap();
    }
    // Another version of the state: the stream is folded from its start.
    let new = with(SnapshotPolicy::every(5, "account").state_version(2));
    account.take_folded();
    assert_eq!(new.load("a").await.unwrap().state.money, 10);
    assert_eq!(account.take_folded(), 10);
    // The next snapshot is of the new shape and is used.
    for _ in 0..5 {
        new.handle("a", &Command::Deposit(1)).await.unwrap();
    }
    account.take_folded();
    assert_eq!(new.load("a").await.unwrap().state.money, 15);
    assert_eq!(account.take_folded(), 0);

    // A state that does not deserialise any more, without a new version.
    #[derive(Clone)]
    struct Renamed;
    #[derive(Debug, Serialize, Deserialize)]
    struct Cents {
        cents: u64,
    }
    impl Decider for Renamed {
        type Command = ();
        type Event = AccountEvent;
        type State = Cents;
        type Error = String;
        fn initial(&self) -> Cents {
            Cents { cents: 0 }
        }
        fn evolve(&self, state: Cents, event: &AccountEvent) -> Cents {
            let AccountEvent::Deposited { amount } = event else { panic!("only deposits") };
            Cents { cents: state.cents + 100 * amount }
        }
        fn decide(&self, _: &Cents, (): &()) -> Result<Vec<AccountEvent>, String> {
            Ok(vec![])
        }
    }
    let policy = SnapshotPolicy::every(5, "account").state_version(2);
    let renamed = CommandHandler::new(store.clone(), Renamed).snapshots(policy);
    assert_eq!(renamed.load("a").await.unwrap().state.cents, 1_500);
}

/// As after a restore that brought back an older log than the snapshots.
async fn snapshot_ahead_of_the_stream_is_not_believed(fixture: Fixture) {
    let store = fixture.store().await;
    let policy = SnapshotPolicy::every(1, "account");
    let handler = accounts(&store).snapshots(policy);
    handler.handle("a", &Command::Deposit(1)).await.unwrap();
    move_snapshot_ahead(&fixture).await;
    assert_eq!(handler.load("a").await.unwrap().version, Version(9));
    let handled = handler.handle("a", &Command::Deposit(1)).await.unwrap();
    assert_eq!((handled.state.money, handled.version), (2, Version(2)));
}

async fn move_snapshot_ahead(fixture: &Fixture) {
    if fixture.is_sqlite() {
        let path = fixture.url.strip_prefix("sqlite:").unwrap();
        let file = everfold::sqlite::rusqlite::Connection::open(path).unwrap();
        let changed = file.execute("UPDATE everfold_stream_snapshots SET version = 9", []).unwrap();
        assert_eq!(changed, 1);
        return;
    }
    let client = fixture.database().connect().await;
    let changed =
        client.execute("UPDATE everfold.stream_snapshots SET version = 9", &[]).await.unwrap();
    assert_eq!(changed, 1);
}
