//! Registering projections: what is new, what is found, what is refused, and what is left behind.

use everfold::{
    GenerationStatus, OnError, Projection, ProjectionBuilder, ProjectionError, Registered, Store,
};

use crate::fixture::{Fixture, append, caught_up, counted, event, on_every_store};

on_every_store!(
    projection_is_made_once_and_then_found,
    changed_definition_under_the_same_version_is_refused_and_named,
    change_of_settings_needs_no_new_version,
    version_that_was_passed_is_refused,
    higher_version_is_built_beside_the_one_that_readers_see,
    version_that_readers_see_is_fed_where_only_a_newer_one_is_given,
    table_of_another_projection_is_refused,
    wrong_sql_is_shown_by_file_and_line_and_leaves_nothing_behind,
    names_and_types_do_not_get_out_of_their_quotes,
    inline_projection_is_active_at_once_only_in_an_empty_store,
    many_processes_register_the_same_projection_at_once,
    of_two_definitions_at_once_one_is_registered,
    namespaces_keep_projections_of_one_name_apart,
);

const CREATE: &str =
    "CREATE TABLE read_model.totals (stream_id TEXT PRIMARY KEY, n BIGINT NOT NULL)";
const APPLY: &str = "INSERT INTO read_model.totals AS t (stream_id, n)
    SELECT stream_id, SUM(CAST(data->>'n' AS BIGINT)) FROM batch WHERE true GROUP BY stream_id
    ON CONFLICT (stream_id) DO UPDATE SET n = t.n + EXCLUDED.n";

type Sql = ProjectionBuilder<everfold::SqlBody>;

fn totals(version: u32) -> Sql {
    Projection::sql("totals", version).create(CREATE).apply(APPLY).events(["Counted"])
}

async fn register(store: &Store, projection: Sql) -> Result<Registered, ProjectionError> {
    store.register(projection.build()?).await
}

/// A column of a read model as readers see it, as text, sorted.
async fn rows(fixture: &Fixture, namespace: &str, table: &str, column: &str) -> Vec<String> {
    let quoted = |name: String| format!("\"{}\"", name.replace('"', "\"\""));
    let between = if namespace.is_empty() { "" } else { "_" };
    let select = |from: String| format!("SELECT CAST({column} AS TEXT) FROM {from} ORDER BY 1");
    let schema = format!("read_model{between}{namespace}");
    if fixture.is_sqlite() {
        let path = fixture.url.strip_prefix("sqlite:").unwrap();
        let connection = everfold::sqlite::rusqlite::Connection::open(path).unwrap();
        let sql = select(quoted(format!("{schema}_{table}")));
        let mut statement = connection.prepare(&sql).unwrap();
        let rows = statement.query_map([], |row| row.get(0)).unwrap();
        return rows.map(Result::unwrap).collect();
    }
    let client = fixture.database().connect().await;
    let sql = select(format!("{}.{}", quoted(schema), quoted(table.to_owned())));
    client.query(&sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

async fn projection_is_made_once_and_then_found(fixture: Fixture) {
    let store = fixture.store().await;
    let first = register(&store, totals(1)).await.unwrap();
    assert!(first.created);
    assert_eq!((first.name.as_str(), first.version), ("totals", 1));
    assert_eq!((first.status, first.reason), (GenerationStatus::Active, None));

    let other = fixture.store().await;
    for store in [&store, &other] {
        let again = register(store, totals(1)).await.unwrap();
        assert!(!again.created);
        assert_eq!(again.status, GenerationStatus::Active);
    }
    let all = store.projections().await.unwrap();
    assert_eq!(all.len(), 1);
    assert!(all[0].active);
    assert_eq!(rows(&fixture, "", "totals", "n").await, [] as [String; 0]);
}

async fn changed_definition_under_the_same_version_is_refused_and_named(fixture: Fixture) {
    let store = fixture.store().await;
    register(&store, totals(1)).await.unwrap();
    let other_apply = APPLY.replace("SUM", "MAX");
    let changed: [(Sql, &str); 6] = [
        (totals(1).create(CREATE.replace("n BIGINT NOT NULL", "n BIGINT")), "create"),
        (totals(1).apply(other_apply), "apply"),
        (totals(1).inline(), "lifecycle"),
        (totals(1).key_fields(["data.n"]), "key"),
        (totals(1).events(["Counted", "Uncounted"]), "events"),
        (totals(1).shards(4), "shards"),
    ];
    for (projection, changed) in changed {
        match register(&store, projection).await.unwrap_err() {
            ProjectionError::Changed { projection, version, what } => {
                assert_eq!((projection.as_str(), version), ("totals", 1));
                assert!(what.contains(changed), "{changed}: {what}");
            }
            other => panic!("{changed}: {other:?}"),
        }
    }
    assert_eq!(store.projections().await.unwrap().len(), 1);
    assert!(!register(&store, totals(1)).await.unwrap().created, "the first one still holds");
}

async fn change_of_settings_needs_no_new_version(fixture: Fixture) {
    let store = fixture.store().await;
    register(&store, totals(1)).await.unwrap();
    let found = register(&store, totals(1).on_error(OnError::Skip)).await.unwrap();
    assert!(!found.created);
    let messages = store.messages(&everfold::MessageQuery::of("totals")).await.unwrap();
    assert_eq!(messages.iter().filter(|message| message.kind == "settings").count(), 1);
    register(&store, totals(1).on_error(OnError::Skip)).await.unwrap();
    let messages = store.messages(&everfold::MessageQuery::of("totals")).await.unwrap();
    let kinds: Vec<&str> = messages.iter().map(|message| message.kind.as_str()).collect();
    assert_eq!(kinds, ["settings", "registered"], "the newest first, each once");
}

async fn version_that_was_passed_is_refused(fixture: Fixture) {
    let store = fixture.store().await;
    register(&store, totals(2)).await.unwrap();
    let error = register(&store, totals(1)).await.unwrap_err();
    assert!(matches!(error, ProjectionError::Older { version: 1, registered: 2, .. }), "{error:?}");
    assert_eq!(store.projections().await.unwrap().len(), 1);
}

async fn version_that_readers_see_is_fed_where_only_a_newer_one_is_given(fixture: Fixture) {
    let store = fixture.store().await;
    caught_up(&store, &totals(1).build().unwrap()).await;
    append(&store, "a", counted([3, 4])).await;
    let next = totals(2).apply(APPLY.replace("SUM", "MAX")).build().unwrap();
    caught_up(&fixture.store().await, &next).await;
    assert_eq!(rows(&fixture, "", "totals", "n").await, ["7"]);
    let positions = store.projections().await.unwrap();
    assert!(positions.iter().all(|status| status.position.0 == 2), "{positions:?}");
}

async fn higher_version_is_built_beside_the_one_that_readers_see(fixture: Fixture) {
    let store = fixture.store().await;
    register(&store, totals(1).inline()).await.unwrap();
    append(&store, "a", counted([3, 4])).await;
    let next = register(&store, totals(2).inline().apply(APPLY.replace("SUM", "MAX"))).await;
    let next = next.unwrap();
    assert!(next.created);
    assert_eq!(next.status, GenerationStatus::Building);
    let reason = next.reason.unwrap();
    assert!(reason.contains("version 1") && reason.contains("everfold rebuild totals"), "{reason}");

    append(&store, "a", counted([5])).await;
    assert_eq!(rows(&fixture, "", "totals", "n").await, ["12"]);
    let mut all = store.projections().await.unwrap();
    all.sort_by_key(|status| status.version);
    let seen: Vec<(u32, bool)> = all.iter().map(|status| (status.version, status.active)).collect();
    assert_eq!(seen, [(1, true), (2, false)]);
    assert!(!register(&store, totals(1).inline()).await.unwrap().created, "old code starts again");
}

async fn table_of_another_projection_is_refused(fixture: Fixture) {
    let store = fixture.store().await;
    register(&store, totals(1)).await.unwrap();
    let other = Projection::sql("sums", 1).create(CREATE).apply(APPLY);
    match register(&store, other).await.unwrap_err() {
        ProjectionError::TableTaken { projection, table, owner } => {
            assert_eq!(
                (projection, table, owner),
                ("sums".into(), "totals".into(), "totals".into())
            );
        }
        other => panic!("{other:?}"),
    }
    let all = store.projections().await.unwrap();
    assert_eq!(all.len(), 1, "nothing of the refused one is left");
}

async fn wrong_sql_is_shown_by_file_and_line_and_leaves_nothing_behind(fixture: Fixture) {
    let store = fixture.store().await;
    let at = |error: ProjectionError| match error {
        ProjectionError::Sql { projection, file, line, message } => {
            assert_eq!(projection, "totals");
            (file, line, message)
        }
        other => panic!("{other:?}"),
    };
    let create = format!(
        "-- what was counted\n{CREATE};\nCREATE INDEX totals_n\n  ON read_model.totals (m)"
    );
    let (file, line, message) = at(register(&store, totals(1).create(create)).await.unwrap_err());
    assert!(file.starts_with("create"), "{file}");
    assert!((3..=4).contains(&line), "line {line}: {message}");
    assert!(message.contains('m'), "{message}");

    let apply = format!("{APPLY};\n\nUPDATE read_model.totals\n   SET missing = 1");
    let (file, line, message) = at(register(&store, totals(1).apply(apply)).await.unwrap_err());
    assert!(file.starts_with("apply"), "{file}");
    assert!((5..=6).contains(&line), "line {line}: {message}");
    assert!(message.contains("missing"), "{message}");

    assert!(store.projections().await.unwrap().is_empty());
    assert!(register(&store, totals(1)).await.unwrap().created, "the mended one is new");
}

async fn names_and_types_do_not_get_out_of_their_quotes(fixture: Fixture) {
    let store = fixture.store().await;
    for name in ["totals\"; DROP TABLE x; --", "Totals", "1totals", "", "to'tals", "to tals"] {
        let projection = Projection::sql(name, 1).create(CREATE).apply(APPLY).build();
        assert!(matches!(projection, Err(ProjectionError::Invalid { .. })), "{name}");
    }
    let hostile = "it's \"); DELETE FROM batch; --\\";
    let create = CREATE.replace("totals", "\"totals\"\"; DROP TABLE x; --\"");
    let projection = totals(1).create(create).build();
    assert!(matches!(projection, Err(ProjectionError::Sql { .. })), "{projection:?}");

    register(&store, totals(1).events([hostile]).inline()).await.unwrap();
    append(&store, "a'b\"c", [event(hostile, serde_json::json!({ "n": 2 }))]).await;
    append(&store, "a'b\"c", counted([100])).await;
    assert_eq!(rows(&fixture, "", "totals", "n").await, ["2"]);
    assert_eq!(rows(&fixture, "", "totals", "stream_id").await, ["a'b\"c"]);
}

async fn inline_projection_is_active_at_once_only_in_an_empty_store(fixture: Fixture) {
    let store = fixture.store().await;
    let first = register(&store, totals(1).inline()).await.unwrap();
    assert_eq!(first.status, GenerationStatus::Active);
    append(&store, "a", counted([3, 4])).await;
    assert_eq!(rows(&fixture, "", "totals", "n").await, ["7"]);

    let late = Projection::sql("late", 1)
        .create("CREATE TABLE read_model.late (n BIGINT)")
        .apply("INSERT INTO read_model.late SELECT CAST(data->>'n' AS BIGINT) FROM batch")
        .inline();
    let late = register(&store, late).await.unwrap();
    assert_eq!(late.status, GenerationStatus::Building);
    let reason = late.reason.unwrap();
    assert!(reason.contains("everfold rebuild late"), "{reason}");
    append(&store, "a", counted([5])).await;
    let status = store.projection("late").await.unwrap();
    assert_eq!((status.active, status.open_skips), (false, 0), "building ones are owed nothing");
}

async fn many_processes_register_the_same_projection_at_once(fixture: Fixture) {
    let mut stores = Vec::new();
    for _ in 0..5 {
        stores.push(fixture.store().await);
    }
    let racing = stores.iter().map(|store| register(store, totals(1).inline()));
    let outcomes = futures::future::join_all(racing).await;
    let created = outcomes.iter().filter(|outcome| outcome.as_ref().unwrap().created).count();
    assert_eq!(created, 1);
    assert_eq!(stores[0].projections().await.unwrap().len(), 1);
}

async fn of_two_definitions_at_once_one_is_registered(fixture: Fixture) {
    let stores = [fixture.store().await, fixture.store().await];
    let other = || totals(1).apply(APPLY.replace("SUM", "MAX"));
    let (one, two) = tokio::join!(register(&stores[0], totals(1)), register(&stores[1], other()));
    let (won, lost) = if one.is_ok() { (one, two) } else { (two, one) };
    assert!(won.unwrap().created);
    assert!(matches!(lost, Err(ProjectionError::Changed { .. })), "{lost:?}");
}

async fn namespaces_keep_projections_of_one_name_apart(fixture: Fixture) {
    let store = fixture.store().await;
    let shop = fixture.store_with(|options| options.namespace = "shop".to_owned()).await;
    assert!(register(&store, totals(1).inline()).await.unwrap().created);
    assert!(register(&shop, totals(1).inline().events(["Sold"])).await.unwrap().created);
    append(&shop, "a", counted([3])).await;
    append(&store, "a", [event("Sold", serde_json::json!({ "n": 8 }))]).await;
    assert_eq!(rows(&fixture, "", "totals", "n").await, ["3"]);
    assert_eq!(rows(&fixture, "shop", "totals", "n").await, ["8"]);
    assert_eq!(shop.projections().await.unwrap().len(), 1);
}
