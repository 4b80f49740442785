//! Leases on PostgreSQL, by the statements that runners send: shares are even, the dead are taken over,
//! and whoever lost a lease can move nothing.

use std::collections::{BTreeMap, BTreeSet};

use everfold::{Projection, Store, Uuid};
use everfold_testkit::eventually;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::fixture::Fixture;

const LOCK_CHECKPOINT: &str = include_str!("../../sql/postgres/statements/lock_checkpoint.sql");
const ADVANCE: &str = include_str!("../../sql/postgres/statements/advance_checkpoint.sql");
const EXPIRE: &str =
    "UPDATE everfold.checkpoints SET expires_at = clock_timestamp() - interval '1 s'";

/// Generation, shard, epoch.
type Lease = (i32, i32, i64);

struct Worker {
    id: Uuid,
    client: Client,
}

impl Worker {
    async fn new(fixture: &Fixture) -> Worker {
        Worker { id: Uuid::now_v7(), client: fixture.database().connect().await }
    }

    async fn tick(&self, carries: &[i32]) -> Vec<Lease> {
        let sql = "SELECT generation, shard, epoch FROM everfold.tick($1, 'w', $2, 15000)";
        let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
            [(&self.id, Type::UUID), (&carries, Type::INT4_ARRAY)];
        let rows = self.client.query_typed(sql, &params).await.expect("a tick never fails");
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
    }

    async fn leave(&self) {
        self.client.execute("SELECT everfold.leave($1)", &[&self.id]).await.unwrap();
    }

    /// Gives no sign of life for so long that its row and its leases have run out.
    async fn die(&self) {
        for (table, column) in [("checkpoints", "owner"), ("workers", "id")] {
            let sql = format!(
                "UPDATE everfold.{table} SET expires_at = clock_timestamp() - interval '1 s' \
                 WHERE {column} = $1"
            );
            self.client.execute(&sql, &[&self.id]).await.unwrap();
        }
    }

    /// The position, if the lease still holds; the row is locked then, in a transaction.
    async fn lock(&self, (generation, shard, epoch): Lease) -> Option<i64> {
        let rows =
            self.client.query(LOCK_CHECKPOINT, &[&generation, &shard, &epoch]).await.unwrap();
        rows.first().map(|row| row.get(0))
    }

    /// Whether the checkpoint was moved.
    async fn advance(&self, (generation, shard, epoch): Lease, from: i64, to: i64) -> bool {
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [&generation, &shard, &epoch, &from, &to];
        !self.client.query(ADVANCE, &params).await.unwrap().is_empty()
    }
}

/// A store with projections of so many shards; their generations are 1, 3, 5 …: behind each is its
/// spare
async fn store_with(fixture: &Fixture, shards: &[u32]) -> Store {
    let store = fixture.store().await;
    for (n, shards) in shards.iter().enumerate() {
        let projection = Projection::sql(format!("p{n}"), 1)
            .create(format!("CREATE TABLE read_model.t{n} (x TEXT)"))
            .apply(format!("INSERT INTO read_model.t{n} SELECT type FROM batch"))
            .shards(*shards)
            .build()
            .unwrap();
        store.register(projection).await.unwrap();
    }
    store
}

#[tokio::test]
async fn late_holder_cannot_advance_checkpoint() {
    let fixture = Fixture::postgres().await;
    let _store = store_with(&fixture, &[1]).await;
    let (late, next) = (Worker::new(&fixture).await, Worker::new(&fixture).await);
    let old = late.tick(&[1]).await[0];
    assert!(next.tick(&[1]).await.is_empty(), "the lease is held");

    late.die().await;
    let new = next.tick(&[1]).await[0];
    assert_eq!(new.2, old.2 + 1, "whoever takes a lease raises the epoch");
    assert_eq!(late.lock(old).await, None);
    assert!(!late.advance(old, 0, 5).await);
    assert!(next.advance(new, 0, 7).await);
    assert!(!next.advance(new, 0, 9).await, "a checkpoint moves only from where it stands");
    assert!(late.tick(&[1]).await.is_empty(), "it has none until one is free");
}

#[tokio::test]
async fn shard_in_the_middle_of_a_batch_is_not_taken_and_its_batch_prolongs_the_lease() {
    let fixture = Fixture::postgres().await;
    let _store = store_with(&fixture, &[1]).await;
    let (busy, next) = (Worker::new(&fixture).await, Worker::new(&fixture).await);
    let lease = busy.tick(&[1]).await[0];
    busy.client.batch_execute(EXPIRE).await.unwrap();
    busy.client.batch_execute("BEGIN").await.unwrap();
    assert_eq!(busy.lock(lease).await, Some(0));
    assert!(next.tick(&[1]).await.is_empty(), "expired, but in use");
    assert!(busy.advance(lease, 0, 3).await);
    busy.client.batch_execute("COMMIT").await.unwrap();
    assert!(next.tick(&[1]).await.is_empty(), "its worker lives, so the lease does");
    assert_eq!(busy.tick(&[1]).await, [lease]);
}

#[tokio::test]
async fn shares_are_even_and_follow_workers_that_come_and_go() {
    let fixture = Fixture::postgres().await;
    let _store = store_with(&fixture, &[8, 2, 1]).await;
    let all = [1, 3, 5];
    let workers =
        [Worker::new(&fixture).await, Worker::new(&fixture).await, Worker::new(&fixture).await];
    assert_eq!(workers[0].tick(&all).await.len(), 11, "one alone has all");
    for worker in &workers {
        worker.tick(&all).await;
    }
    assert_eq!(settled(&workers, &all).await, [3, 4, 4]);
    // One leaves: what it had is free at once.
    workers[0].leave().await;
    assert_eq!(settled(&workers[1..], &all).await, [5, 6]);
    workers[1].die().await;
    assert_eq!(workers[2].tick(&all).await.len(), 11);
}

/// How many leases each has after two rounds of ticks, sorted: what is given up in the first round is
/// taken in the second.
async fn settled(workers: &[Worker], carries: &[i32]) -> Vec<usize> {
    let mut counts = Vec::new();
    for _ in 0..3 {
        counts.clear();
        for worker in workers {
            counts.push(worker.tick(carries).await.len());
        }
    }
    counts.sort_unstable();
    counts
}

#[tokio::test]
async fn only_what_is_carried_and_running_is_taken() {
    let fixture = Fixture::postgres().await;
    let store = store_with(&fixture, &[2, 2]).await;
    let (one, other) = (Worker::new(&fixture).await, Worker::new(&fixture).await);
    assert_eq!(one.tick(&[1]).await.len(), 2);
    let taken = other.tick(&[1, 3]).await;
    assert!(taken.iter().all(|lease| lease.0 == 3) && taken.len() == 2, "{taken:?}");
    let shares = settled(&[one, other], &[1, 3]).await;
    assert_eq!(shares, [2, 2]);

    let worker = Worker::new(&fixture).await;
    store.pause("p0").await.unwrap();
    store.pause("p1").await.unwrap();
    assert!(worker.tick(&[1, 3]).await.is_empty(), "nothing is run while it is paused");
    store.resume("p0").await.unwrap();
    eventually("others see it", std::time::Duration::from_secs(60), async || {
        worker.tick(&[1, 3]).await.iter().all(|lease| lease.0 == 1)
    })
    .await;
}

/// Ten that tick as fast as they can: nobody waits, and nobody is given what another has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_workers_at_once_never_share_a_lease() {
    const ROUNDS: usize = 30;
    let fixture = Fixture::postgres().await;
    let _store = store_with(&fixture, &[16, 5]).await;
    let mut tasks = Vec::new();
    for n in 0..10 {
        let worker = Worker::new(&fixture).await;
        tasks.push(tokio::spawn(async move {
            let mut seen = BTreeSet::new();
            for round in 0..ROUNDS {
                // Some come and go on the way.
                if n % 3 == 0 && round % 7 == 6 {
                    worker.leave().await;
                    continue;
                }
                seen.extend(worker.tick(&[1, 3]).await);
            }
            (worker, seen)
        }));
    }
    let mut owners: BTreeMap<Lease, Uuid> = BTreeMap::new();
    let mut workers = Vec::new();
    for task in tasks {
        let (worker, seen) = task.await.unwrap();
        for lease in seen {
            let before = owners.insert(lease, worker.id);
            assert_eq!(before, None, "{lease:?} was given to two workers");
        }
        workers.push(worker);
    }
    assert!(owners.len() > 21, "leases moved: {}", owners.len());
    let shares = settled(&workers, &[1, 3]).await;
    assert_eq!(shares.iter().sum::<usize>(), 21, "{shares:?}");
    assert!(shares[9] - shares[0] <= 1, "{shares:?}");
}

/// The same vectors as the library's `key::shard_of`.
#[tokio::test]
async fn shard_of_a_key_is_the_same_in_sql() {
    let fixture = Fixture::postgres().await;
    drop(fixture.store().await);
    let client = fixture.database().connect().await;
    let long = "x".repeat(512);
    let vectors = [
        ("", [0, 0, 1, 2, 66]),
        ("cart-1", [0, 0, 5, 8, 696]),
        ("cart-2", [0, 0, 3, 10, 42]),
        ("ä/ß 漢字 😀", [0, 1, 1, 9, 393]),
        (r#"["acme","42"]"#, [0, 0, 5, 2, 306]),
        (&long, [0, 1, 0, 3, 67]),
    ];
    for (key, expected) in vectors {
        for (shards, expected) in [1, 2, 7, 16, 1024].into_iter().zip(expected) {
            let sql = "SELECT everfold.shard_of($1, $2)";
            let found: i32 = client.query_one(sql, &[&key, &shards]).await.unwrap().get(0);
            assert_eq!(found, expected, "{key} of {shards}");
        }
    }
}
