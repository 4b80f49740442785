//! Rebuilds on every store: beside, in place, of a new version, promoted and rolled back, joined,
//! paused, cancelled and resumed; each time the read model is the fold of the log.

use std::collections::BTreeMap;

use everfold::{
    DocumentProjection, GenerationStatus, Projection, ProjectionError, RebuildOptions,
    RebuildPhase, RecordedEvent, Runner, Store,
};
use everfold_testkit::eventually;
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::chain::{LIMIT, quick};
use crate::fixture::{Fixture, append, counted, on_every_store, read_all};

on_every_store! {
    inline_read_model_is_built_again_beside_itself,
    catch_up_read_model_is_built_again_beside_itself,
    new_version_takes_over_and_gives_way_again,
    catch_up_version_takes_over_and_gives_way_again,
    read_model_is_built_again_in_place,
    catch_up_read_model_is_built_again_in_place,
    documents_are_built_again,
    new_inline_projection_is_filled_with_what_is_there,
    runner_fills_a_new_inline_projection_by_itself,
    built_without_promotion_and_promoted_later,
    second_request_joins_the_first,
    paused_rebuild_rests_and_cancelled_one_leaves_nothing,
    rebuild_that_was_left_is_gone_on_with,
    runner_takes_up_what_another_process_asked_for,
    rolled_back_generation_was_fed_meanwhile,
    retired_generations_are_gone,
}

const CREATE: &str = "CREATE TABLE read_model.numbers (key TEXT PRIMARY KEY, n TEXT NOT NULL);
    CREATE INDEX numbers_n ON read_model.numbers (n)";

/// The numbers of each stream in the order in which they were applied; `mark` tells versions apart.
fn apply(mark: &str) -> String {
    format!(
        "INSERT INTO read_model.numbers AS t (key, n)
         SELECT stream_id, string_agg(CAST(data->>'n' AS TEXT) || '{mark}', ',' ORDER BY position)
           FROM batch WHERE true GROUP BY 1
         ON CONFLICT (key) DO UPDATE SET n = t.n || ',' || excluded.n"
    )
}

pub(crate) fn numbers(version: u32, inline: bool) -> Projection {
    let mark = if version == 1 { "" } else { "!" };
    let sql = Projection::sql("numbers", version).create(CREATE).apply(apply(mark));
    let sql = sql.events(["Counted"]);
    let sql = if inline { sql.inline() } else { sql };
    sql.build().unwrap()
}

pub(crate) async fn found(fixture: &Fixture) -> BTreeMap<String, String> {
    let rows = fixture.rows("SELECT key, n FROM read_model.numbers").await;
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    rows.iter().map(|row| (text(&row[0]), text(&row[1]))).collect()
}

pub(crate) async fn expected(store: &Store, mark: &str) -> BTreeMap<String, String> {
    let mut folded: BTreeMap<String, String> = BTreeMap::new();
    for event in read_all(store).await {
        let data: Value = event.data_as().unwrap();
        let all = folded.entry(event.stream_id.to_string()).or_default();
        if !all.is_empty() {
            all.push(',');
        }
        all.push_str(&format!("{}{mark}", data["n"]));
    }
    folded
}

pub(crate) async fn count(store: &Store, numbers: std::ops::Range<u64>) {
    for stream in ["a", "b", "c"] {
        append(store, stream, counted(numbers.clone())).await;
    }
}

async fn rebuild(store: &Store, options: RebuildOptions) -> RebuildPhase {
    store.rebuild("numbers", options).await.unwrap().finish().await.unwrap().phase
}

fn options() -> RebuildOptions {
    RebuildOptions::default()
}

/// Version and status of each generation, the oldest first.
async fn statuses(store: &Store) -> Vec<(u32, GenerationStatus)> {
    let all = store.projections().await.unwrap();
    let mut found: Vec<_> = all.iter().map(|status| (status.version, status.status)).collect();
    found.sort_by_key(|(version, status)| (*version, status.to_string()));
    found
}

async fn inline_read_model_is_built_again_beside_itself(fixture: Fixture) {
    use GenerationStatus::{Active, Kept};
    let store = fixture.store().await;
    store.register(numbers(1, true)).await.unwrap();
    count(&store, 0..20).await;
    fixture.execute_in("numbers", "UPDATE {}numbers SET n = 'wrong' WHERE key = 'a'").await;
    assert_ne!(found(&fixture).await, expected(&store, "").await);

    assert_eq!(rebuild(&store, options()).await, RebuildPhase::Done);
    assert_eq!(found(&fixture).await, expected(&store, "").await);
    assert_eq!(statuses(&store).await, [(1, Active), (1, Kept)]);
    count(&store, 20..30).await;
    assert_eq!(found(&fixture).await, expected(&store, "").await, "appends apply to the new one");

    assert_eq!(rebuild(&store, options()).await, RebuildPhase::Done);
    assert_eq!(found(&fixture).await, expected(&store, "").await);
    assert_eq!(statuses(&store).await, [(1, Active), (1, Kept)], "one earlier one is kept");
}

async fn catch_up_read_model_is_built_again_beside_itself(fixture: Fixture) {
    let store = fixture.store().await;
    count(&store, 0..20).await;
    let runner = Runner::new(&store).projection(numbers(1, false)).options(quick("one"));
    let runner = runner.start().await.unwrap();
    runner.catch_up().await.unwrap();
    fixture.execute_in("numbers", "DELETE FROM {}numbers WHERE key = 'b'").await;

    assert_eq!(rebuild(&store, options()).await, RebuildPhase::Done);
    assert_eq!(found(&fixture).await, expected(&store, "").await);
    count(&store, 20..40).await;
    runner.catch_up().await.unwrap();
    assert_eq!(found(&fixture).await, expected(&store, "").await);
    runner.stop().await;
}

async fn new_version_takes_over_and_gives_way_again(fixture: Fixture) {
    use GenerationStatus::{Active, Kept};
    let store = fixture.store().await;
    store.register(numbers(1, true)).await.unwrap();
    count(&store, 0..20).await;
    store.register(numbers(2, true)).await.unwrap();
    count(&store, 20..25).await;
    assert_eq!(found(&fixture).await, expected(&store, "").await, "readers see the old one");

    assert_eq!(rebuild(&store, options()).await, RebuildPhase::Done);
    assert_eq!(found(&fixture).await, expected(&store, "!").await);
    assert_eq!(statuses(&store).await, [(1, Kept), (2, Active)]);
    count(&store, 25..30).await;

    for round in 0..2 {
        store.rollback("numbers", options()).await.unwrap().finish().await.unwrap();
        assert_eq!(found(&fixture).await, expected(&store, "").await, "round {round}");
        assert_eq!(statuses(&store).await, [(1, Active), (2, Kept)]);
        count(&store, 30 + round * 10..40 + round * 10).await;
        assert_eq!(found(&fixture).await, expected(&store, "").await);

        store.promote("numbers", options()).await.unwrap().finish().await.unwrap();
        assert_eq!(found(&fixture).await, expected(&store, "!").await, "round {round}");
        assert_eq!(statuses(&store).await, [(1, Kept), (2, Active)]);
        count(&store, 60 + round * 10..70 + round * 10).await;
        assert_eq!(found(&fixture).await, expected(&store, "!").await);
    }
}

async fn catch_up_version_takes_over_and_gives_way_again(fixture: Fixture) {
    let store = fixture.store().await;
    count(&store, 0..20).await;
    let runner = Runner::new(&store).projection(numbers(1, false)).options(quick("one"));
    runner.run_once().await.unwrap();
    let runner = Runner::new(&store).projection(numbers(2, false)).options(quick("two"));
    let runner = runner.start().await.unwrap();
    assert_eq!(rebuild(&store, options()).await, RebuildPhase::Done);
    assert_eq!(found(&fixture).await, expected(&store, "!").await);
    count(&store, 20..30).await;
    runner.catch_up().await.unwrap();
    assert_eq!(found(&fixture).await, expected(&store, "!").await);
    store.rollback("numbers", options()).await.unwrap().finish().await.unwrap();
    eventually("it has caught up", LIMIT, async || {
        found(&fixture).await == expected(&store, "").await
    })
    .await;
    runner.stop().await;
}

async fn read_model_is_built_again_in_place(fixture: Fixture) {
    use GenerationStatus::Active;
    let store = fixture.store().await;
    store.register(numbers(1, true)).await.unwrap();
    count(&store, 0..20).await;
    fixture.execute_in("numbers", "UPDATE {}numbers SET n = 'wrong' WHERE key = 'a'").await;
    let in_place = RebuildOptions::in_place();
    assert_eq!(rebuild(&store, in_place).await, RebuildPhase::Done);
    assert_eq!(found(&fixture).await, expected(&store, "").await);
    assert_eq!(statuses(&store).await, [(1, Active)], "nothing is left of the old one");
    count(&store, 20..30).await;
    assert_eq!(found(&fixture).await, expected(&store, "").await);
    assert!(store.skips("numbers").await.unwrap().is_empty());
}

async fn catch_up_read_model_is_built_again_in_place(fixture: Fixture) {
    let store = fixture.store().await;
    count(&store, 0..20).await;
    let runner = Runner::new(&store).projection(numbers(1, false)).options(quick("one"));
    let runner = runner.start().await.unwrap();
    runner.catch_up().await.unwrap();
    fixture.execute_in("numbers", "DELETE FROM {}numbers WHERE key = 'b'").await;
    let in_place = RebuildOptions::in_place();
    assert_eq!(rebuild(&store, in_place).await, RebuildPhase::Done);
    assert_eq!(found(&fixture).await, expected(&store, "").await);
    count(&store, 20..30).await;
    runner.catch_up().await.unwrap();
    assert_eq!(found(&fixture).await, expected(&store, "").await);
    runner.stop().await;
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Event {
    Counted { n: i64 },
}

#[derive(Clone)]
pub(crate) struct Sum;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Total {
    n: String,
}

impl DocumentProjection for Sum {
    type Event = Event;
    type Document = Total;

    fn evolve(&self, total: Option<Total>, event: &Event, _: &RecordedEvent) -> Option<Total> {
        let Event::Counted { n } = event;
        let n = total.map_or(n.to_string(), |total| format!("{},{n}", total.n));
        Some(Total { n })
    }
}

async fn documents_of(store: &Store) -> BTreeMap<String, String> {
    let all = store.documents::<Total>("numbers").collect().await.unwrap();
    all.into_iter().map(|document| (document.key, document.document.n)).collect()
}

async fn documents_are_built_again(fixture: Fixture) {
    let store = fixture.store().await;
    let projection = || Projection::document("numbers", 1, Sum).inline().build().unwrap();
    store.register(projection()).await.unwrap();
    count(&store, 0..20).await;
    fixture.execute_in("numbers", "DELETE FROM {}numbers WHERE key = 'b'").await;
    assert_eq!(rebuild(&store, options()).await, RebuildPhase::Done);
    assert_eq!(documents_of(&store).await, expected(&store, "").await);
    count(&store, 20..30).await;
    assert_eq!(documents_of(&store).await, expected(&store, "").await);
    assert!(store.skips("numbers").await.unwrap().is_empty(), "this handle carries it");
    let in_place = RebuildOptions::in_place();
    assert_eq!(rebuild(&store, in_place).await, RebuildPhase::Done);
    assert_eq!(documents_of(&store).await, expected(&store, "").await);
}

async fn new_inline_projection_is_filled_with_what_is_there(fixture: Fixture) {
    let store = fixture.store().await;
    count(&store, 0..20).await;
    let registered = store.register(numbers(1, true)).await.unwrap();
    assert_eq!(registered.status, GenerationStatus::Building);
    count(&store, 20..25).await;
    assert_eq!(rebuild(&store, options()).await, RebuildPhase::Done);
    count(&store, 25..30).await;
    assert_eq!(found(&fixture).await, expected(&store, "").await);
    assert_eq!(statuses(&store).await, [(1, GenerationStatus::Active)]);
}

async fn runner_fills_a_new_inline_projection_by_itself(fixture: Fixture) {
    let store = fixture.store().await;
    count(&store, 0..20).await;
    Runner::new(&store).projection(numbers(1, true)).run_once().await.unwrap();
    count(&store, 20..30).await;
    assert_eq!(found(&fixture).await, expected(&store, "").await);
    assert_eq!(statuses(&store).await, [(1, GenerationStatus::Active)]);
}

async fn built_without_promotion_and_promoted_later(fixture: Fixture) {
    use GenerationStatus::{Active, Building, Kept};
    let store = fixture.store().await;
    store.register(numbers(1, true)).await.unwrap();
    count(&store, 0..20).await;
    store.register(numbers(2, true)).await.unwrap();
    let mut only_built = options();
    only_built.promote = false;
    assert_eq!(rebuild(&store, only_built).await, RebuildPhase::Built);
    assert_eq!(found(&fixture).await, expected(&store, "").await);
    count(&store, 20..30).await;
    assert_eq!(found(&fixture).await, expected(&store, "").await);
    let built = statuses(&store).await;
    assert!(built.contains(&(2, Building)) && built.contains(&(1, Active)), "{built:?}");
    store.promote("numbers", options()).await.unwrap().finish().await.unwrap();
    assert_eq!(found(&fixture).await, expected(&store, "!").await);
    assert_eq!(statuses(&store).await, [(1, Kept), (2, Active)]);
}

async fn second_request_joins_the_first(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(numbers(1, true)).await.unwrap();
    count(&store, 0..50).await;
    let mut slow = options();
    slow.events_per_second = Some(50);
    let first = store.rebuild("numbers", slow).await.unwrap();
    assert!(!first.joined());
    let other = fixture.store().await;
    other.register(numbers(1, true)).await.unwrap();
    let second = other.rebuild("numbers", options()).await.unwrap();
    assert!(second.joined());
    assert_eq!(first.progress().id, second.progress().id);
    let (first, second) = tokio::join!(first.finish(), second.finish());
    assert_eq!(first.unwrap().phase, RebuildPhase::Done);
    assert_eq!(second.unwrap().phase, RebuildPhase::Done);
    assert_eq!(found(&fixture).await, expected(&store, "").await);
}

async fn paused_rebuild_rests_and_cancelled_one_leaves_nothing(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(numbers(1, true)).await.unwrap();
    count(&store, 0..50).await;
    let error = store.cancel_rebuild("numbers").await.unwrap_err();
    assert!(error.to_string().contains("is not being rebuilt"), "{error}");
    let mut slow = options();
    slow.events_per_second = Some(20);
    let rebuild = store.rebuild("numbers", slow).await.unwrap();
    store.pause_rebuild("numbers").await.unwrap();
    eventually("it is paused", LIMIT, async || store.rebuilds().await.unwrap()[0].paused).await;
    store.cancel_rebuild("numbers").await.unwrap();
    let error = rebuild.finish().await.unwrap_err();
    assert!(error.to_string().contains("cancelled"), "{error}");
    assert_eq!(statuses(&store).await, [(1, GenerationStatus::Active)]);
    count(&store, 50..60).await;
    assert_eq!(found(&fixture).await, expected(&store, "").await);
    let mut again = options();
    again.from_scratch = true;
    let rebuilt = store.rebuild("numbers", again).await.unwrap().finish().await.unwrap();
    assert_eq!(rebuilt.phase, RebuildPhase::Done);
    assert_eq!(found(&fixture).await, expected(&store, "").await);
}

async fn rebuild_that_was_left_is_gone_on_with(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(numbers(1, true)).await.unwrap();
    count(&store, 0..50).await;
    let mut slow = options();
    slow.events_per_second = Some(100);
    let mut rebuild = store.rebuild("numbers", slow).await.unwrap();
    let id = rebuild.progress().id;
    while rebuild.next().await.unwrap().events_done == 0 {}
    rebuild.leave().await;
    count(&store, 50..55).await;
    let other = fixture.store().await;
    other.register(numbers(1, true)).await.unwrap();
    let again = other.rebuild("numbers", options()).await.unwrap();
    assert!(again.joined());
    let done = again.finish().await.unwrap();
    assert_eq!((done.id, done.phase), (id, RebuildPhase::Done));
    assert_eq!(found(&fixture).await, expected(&store, "").await);
}

async fn runner_takes_up_what_another_process_asked_for(fixture: Fixture) {
    let store = fixture.store().await;
    let projection = Projection::document("numbers", 1, Sum).build().unwrap();
    let runner = Runner::new(&store).projection(projection).options(quick("one"));
    let runner = runner.start().await.unwrap();
    count(&store, 0..20).await;
    runner.catch_up().await.unwrap();
    let other = fixture.store().await;
    let rebuild = other.rebuild("numbers", options()).await.unwrap();
    assert!(!rebuild.works_here(), "the code is not here");
    assert_eq!(rebuild.finish().await.unwrap().phase, RebuildPhase::Done);
    assert_eq!(documents_of(&store).await, expected(&store, "").await);
    runner.stop().await;
}

async fn rolled_back_generation_was_fed_meanwhile(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(numbers(1, true)).await.unwrap();
    count(&store, 0..20).await;
    let runner = Runner::new(&store).projection(numbers(2, true)).options(quick("one"));
    let runner = runner.start().await.unwrap();
    rebuild(&store, options()).await;
    count(&store, 20..40).await;
    let kept_is_fed = async || {
        let all = store.projections().await.unwrap();
        let kept = all.iter().find(|s| s.status == GenerationStatus::Kept).unwrap();
        kept.position == kept.mark
    };
    eventually("the kept generation is fed", LIMIT, kept_is_fed).await;
    store.rollback("numbers", options()).await.unwrap().finish().await.unwrap();
    assert_eq!(found(&fixture).await, expected(&store, "").await);
    runner.stop().await;
}

async fn retired_generations_are_gone(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(numbers(1, true)).await.unwrap();
    count(&store, 0..20).await;
    let error = store.retire("numbers").await.unwrap_err();
    assert!(matches!(error, ProjectionError::Refused { .. }), "{error}");
    rebuild(&store, options()).await;
    let retired = store.retire("numbers").await.unwrap();
    assert_eq!((retired.versions, retired.waits_for), (vec![1], vec![]));
    assert_eq!(statuses(&store).await, [(1, GenerationStatus::Active)]);
    let error = store.rollback("numbers", options()).await.unwrap_err();
    assert!(error.to_string().contains("nothing to go back to"), "{error}");
    count(&store, 20..30).await;
    assert_eq!(found(&fixture).await, expected(&store, "").await);
}
