//! How the store compares with a bare loop over rusqlite on the same schema. Not a test of
//! behaviour: `cargo test --release --test sqlite speed -- --ignored --nocapture` prints it.

use std::time::{Duration, Instant};

use everfold::sqlite::rusqlite::{Connection, params};
use everfold::{Durability, ExpectedVersion, NewEvent, Store, Version};

use crate::fixture::Place;

const TASKS: usize = 32;
const ROUNDS: usize = 20;
const TIME_EACH: Duration = Duration::from_millis(200);

fn item_added() -> NewEvent {
    NewEvent::from_json("ItemAdded", r#"{"sku":"A1","quantity":2,"note":"as usual, please"}"#)
        .unwrap()
}

/// Short turns one after the other, so that whatever else the machine does falls on all alike.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes time and prints numbers"]
async fn speed_against_a_bare_loop() {
    for durability in [Durability::Full, Durability::Normal] {
        let place = Place::new();
        let store = place.open_with(|options| options.durability = durability).await;
        let connection = place.connect();
        let mut turns: [Vec<f64>; 3] = Default::default();
        for round in 0..ROUNDS {
            let bare = tokio::task::block_in_place(|| bare_loop(&connection, durability, round));
            turns[0].push(bare);
            turns[1].push(appends_per_second(&store, 1, round).await);
            turns[2].push(appends_per_second(&store, TASKS, round).await);
        }
        let [bare, alone, many] = turns.map(median);
        println!(
            "{durability:?}: bare {bare:.0}/s, one task {alone:.0}/s ({:.2}), \
             {TASKS} tasks {many:.0}/s ({:.2})",
            alone / bare,
            many / bare
        );
    }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// What an application would write by hand: begin, look, insert, commit.
fn bare_loop(connection: &Connection, durability: Durability, round: usize) -> f64 {
    let synchronous = if durability == Durability::Full { "FULL" } else { "NORMAL" };
    connection.execute_batch(&format!("PRAGMA synchronous = {synchronous}")).unwrap();
    let started = Instant::now();
    let mut done = 0;
    while started.elapsed() < TIME_EACH {
        let event = item_added();
        let stream = format!("bare-{round}-{}", done / 10);
        let run = |sql| connection.prepare_cached(sql).unwrap().execute([]).unwrap();
        run("BEGIN IMMEDIATE");
        let version: Option<i64> = connection
            .prepare_cached("SELECT max(version) FROM everfold_events WHERE stream_id = ?1")
            .unwrap()
            .query_row([&stream], |row| row.get(0))
            .unwrap();
        connection
            .prepare_cached(
                "INSERT INTO everfold_events
                     (stream_id, version, type, schema_version, data, metadata, id)
                 VALUES (?1, ?2, ?3, 1, ?4, '{}', ?5)",
            )
            .unwrap()
            .execute(params![
                stream,
                version.unwrap_or(0) + 1,
                event.event_type(),
                event.data(),
                event.id().to_string()
            ])
            .unwrap();
        run("COMMIT");
        done += 1;
    }
    f64::from(done) / started.elapsed().as_secs_f64()
}

async fn appends_per_second(store: &Store, tasks: usize, round: usize) -> f64 {
    let started = Instant::now();
    let running: Vec<_> = (0..tasks)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut done = 0_u32;
                while started.elapsed() < TIME_EACH {
                    let stream = format!("s-{tasks}-{round}-{task}-{}", done / 10);
                    let expected = ExpectedVersion::Exact(Version(u64::from(done % 10)));
                    store.append(stream, expected, [item_added()]).await.unwrap();
                    done += 1;
                }
                done
            })
        })
        .collect();
    let mut done = 0;
    for task in running {
        done += task.await.unwrap();
    }
    f64::from(done) / started.elapsed().as_secs_f64()
}
