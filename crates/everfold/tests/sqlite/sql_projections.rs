//! SQL projections where SQLite has its own ways: callers' transactions, several handles on one file,
//! upcasters as expressions, names of views.

use everfold::sqlite::{append_in, rusqlite};
use everfold::{
    ExpectedVersion, NewEvent, Projection, ProjectionBuilder, ProjectionError, Runner, SqlBody,
    StreamAppend,
};

use crate::chains::{APPLY, CREATE, append_of, chains, events, folded, moved, shown, stream};
use crate::fixture::Place;

#[tokio::test]
async fn callers_transaction_applies_inline_sql_and_undoes_it() {
    let place = Place::new();
    let store = place.open().await;
    store.register(chains().inline().build().unwrap()).await.unwrap();
    let mut connection = place.connect();
    let immediate = rusqlite::TransactionBehavior::Immediate;

    let transaction = connection.transaction_with_behavior(immediate).unwrap();
    append_in(&transaction, &append_of(1)).unwrap();
    transaction.rollback().unwrap();
    assert!(shown(&place).is_empty());

    let transaction = connection.transaction_with_behavior(immediate).unwrap();
    append_in(&transaction, &append_of(1)).unwrap();
    let keyless = NewEvent::from_json("Moved", "{}").unwrap();
    let refused = StreamAppend::new("s-1", ExpectedVersion::Any, [moved(3), keyless]);
    let error = append_in(&transaction, &refused).unwrap_err();
    assert!(error.to_string().contains("data.account is missing or null"), "{error}");
    transaction.commit().unwrap();
    assert_eq!(shown(&place), folded(&store).await);
    assert_eq!(shown(&place).len(), 2, "the refused append left nothing behind");
}

/// The sum of `n` for each stream, where events of earlier versions called it otherwise.
fn sums() -> ProjectionBuilder<SqlBody> {
    Projection::sql("sums", 1)
        .create("CREATE TABLE read_model.sums (stream_id TEXT PRIMARY KEY, n BIGINT NOT NULL)")
        .apply(
            "INSERT INTO read_model.sums AS s (stream_id, n)
             SELECT stream_id, SUM(data->>'n' + 100 * schema_version) FROM batch
              WHERE true GROUP BY stream_id
             ON CONFLICT (stream_id) DO UPDATE SET n = s.n + EXCLUDED.n",
        )
        .events(["Counted"])
        .upcaster("Counted", 1, "json_object('number', data->>'amount') -- a comment")
        .upcaster("Counted", 2, "json_object('n', data->>'number')")
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_sees_events_in_the_shape_of_today() {
    for inline in [true, false] {
        let place = Place::new();
        let store = place.open().await;
        let projection = if inline { sums().inline() } else { sums().shards(3) }.build().unwrap();
        store.register(projection.clone()).await.unwrap();
        let counted = |version, data| {
            NewEvent::from_json("Counted", data).unwrap().with_schema_version(version)
        };
        let events = [
            counted(1, r#"{"amount":1}"#),
            counted(2, r#"{"number":20}"#),
            counted(3, r#"{"n":300}"#),
            counted(1, r#"{"amount":4000}"#),
        ];
        store.append("a", ExpectedVersion::Any, events).await.unwrap();
        if !inline {
            Runner::new(&store).projection(projection).run_once().await.unwrap();
        }
        let sum = "SELECT n FROM read_model_sums WHERE stream_id = 'a'";
        let found: i64 = place.connect().query_row(sum, [], |row| row.get(0)).unwrap();
        assert_eq!(found, 4321 + 4 * 300, "inline: {inline}");
    }
}

#[tokio::test]
async fn wrong_upcaster_is_shown_where_it_stands() {
    let place = Place::new();
    let store = place.open().await;
    let wrong = sums().upcaster("Counted", 3, "json_object('n',\n  no_such_column)");
    let error = store.register(wrong.build().unwrap()).await.unwrap_err().to_string();
    assert!(error.contains("Counted.3:2: no such column: no_such_column"), "{error}");
}

#[tokio::test]
async fn handle_that_was_open_before_applies_what_others_register() {
    let place = Place::new();
    let (old, new) = (place.open().await, place.open().await);
    new.register(chains().inline().build().unwrap()).await.unwrap();
    old.append(stream(1), ExpectedVersion::Any, events(1)).await.unwrap();
    new.append(stream(2), ExpectedVersion::Any, events(2)).await.unwrap();
    assert_eq!(shown(&place), folded(&old).await);
    new.pause("chains").await.unwrap();
    old.append(stream(3), ExpectedVersion::Any, events(3)).await.unwrap();
    assert_eq!(old.projection("chains").await.unwrap().open_skips, 2);
    new.resume("chains").await.unwrap();
    old.append(stream(3), ExpectedVersion::Any, events(3)).await.unwrap();
    assert_eq!(old.projection("chains").await.unwrap().open_skips, 0);
    assert_eq!(shown(&place), folded(&old).await);
}

#[tokio::test]
async fn read_model_dropped_by_hand_fails_appends_with_file_and_line() {
    let place = Place::new();
    let store = place.open().await;
    store.register(chains().inline().build().unwrap()).await.unwrap();
    store.append(stream(1), ExpectedVersion::Any, events(1)).await.unwrap();
    place.connect().execute_batch("DROP VIEW read_model_chains; DROP TABLE g1_chains").unwrap();
    let error = store.append(stream(1), ExpectedVersion::Any, events(1)).await.unwrap_err();
    let said = error.to_string();
    assert!(said.contains("\"chains\"") && said.contains("apply:1: "), "{said}");
    assert!(said.contains("no such table: read_model.chains"), "{said}");
    assert_eq!(store.stream_version(stream(1)).await.unwrap().0, 3, "nothing was stored");
}

#[tokio::test]
async fn names_of_views_that_would_meet_are_refused() {
    let place = Place::new();
    let make = |table: &str| {
        let create = CREATE.replace("chains", table);
        let apply = APPLY.replace("chains", table);
        Projection::sql("p", 1).create(create).apply(apply).build().unwrap()
    };
    let one = place.open_with(|options| options.namespace = "shop".to_owned()).await;
    one.register(make("old_chains")).await.unwrap();
    let other = place.open_with(|options| options.namespace = "shop_old".to_owned()).await;
    let error = other.register(make("chains")).await.unwrap_err();
    assert!(matches!(error, ProjectionError::TableTaken { .. }), "{error:?}");
    place.connect().execute_batch("CREATE TABLE read_model_mine (x)").unwrap();
    let store = place.open().await;
    let error = store.register(make("mine")).await.unwrap_err().to_string();
    assert!(error.contains("read_model_mine already"), "{error}");
}
