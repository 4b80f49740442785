//! What the files of a SQL projection may do, and what is refused when it is registered.

use everfold::{Projection, ProjectionBuilder, ProjectionError, SqlBody};
use serde_json::json;

use crate::fixture::{Fixture, append, caught_up, counted, on_every_store};

on_every_store! {
    views_indexes_and_first_rows_belong_to_a_generation,
    what_a_store_cannot_run_is_refused_with_its_line,
    rows_of_a_statement_within_with_may_be_used,
    sql_for_the_other_store_needs_no_new_version,
    view_of_another_projection_is_refused,
}

const CREATE: &str = "CREATE TABLE read_model.totals (kind TEXT PRIMARY KEY, n BIGINT NOT NULL)";
const APPLY: &str = "UPDATE read_model.totals SET n = n + (SELECT COUNT(*) FROM batch)";

fn totals(create: &str, apply: &str) -> ProjectionBuilder<SqlBody> {
    Projection::sql("totals", 1).create(create).apply(apply)
}

async fn views_indexes_and_first_rows_belong_to_a_generation(fixture: Fixture) {
    let store = fixture.store().await;
    let create = format!(
        "{CREATE};
         CREATE UNIQUE INDEX totals_n ON read_model.totals (n, kind);
         INSERT INTO read_model.totals (kind, n) VALUES ('all', 0), ('half', 100);
         CREATE VIEW read_model.grand AS
             SELECT kind, totals.n AS n FROM read_model.totals WHERE totals.n > 1"
    );
    let projection = totals(&create, APPLY).build().unwrap();
    append(&store, "a", counted([1, 2])).await;
    caught_up(&store, &projection).await;
    let rows = fixture.rows("SELECT kind, n FROM read_model.grand ORDER BY kind").await;
    assert_eq!(rows, [[json!("all"), json!(2)], [json!("half"), json!(102)]]);

    // The next version has rows and a view of its own.
    let next = Projection::sql("totals", 2).create(create).apply(APPLY).build().unwrap();
    store.register(next).await.unwrap();
    assert_eq!(fixture.rows("SELECT n FROM read_model.grand ORDER BY n").await.len(), 2);
}

async fn what_a_store_cannot_run_is_refused_with_its_line(fixture: Fixture) {
    let store = fixture.store().await;
    let of_batch = |condition: &str| format!("{APPLY}\n WHERE {condition}");
    // Told by us before anything is asked, by PostgreSQL, by us or SQLite where it is SQLite.
    for (create, apply, postgres, sqlite) in [
        (
            CREATE,
            format!("\n{APPLY} RETURNING n"),
            "apply:2: nobody reads",
            "apply:2: nobody reads",
        ),
        (CREATE, of_batch("n = ?1"), "apply:", "apply:1: ?1 is a parameter"),
        (CREATE, of_batch("kind = :name"), "apply:", "apply:1: :name is a parameter"),
        (CREATE, of_batch("kind = @name"), "apply:", "apply:1: @name is a parameter"),
        (CREATE, of_batch("kind = $name"), "apply:", "apply:1: $name is a parameter"),
        (CREATE, of_batch("kind = $1"), "apply:1: $1 is a parameter", "$1 is a parameter"),
        (CREATE, of_batch("kind = missing"), "apply:2: ", "apply:2: no such column"),
        (
            "CREATE TABLE read_model.totals (kind TEXT, n BIGINT);\nCOMMENT ON TABLE read_model.totals IS ''",
            APPLY.to_owned(),
            "",
            "create:2: COMMENT is for PostgreSQL alone",
        ),
    ] {
        let expected = if fixture.is_sqlite() { sqlite } else { postgres };
        let refused = match totals(create, &apply).build() {
            Ok(projection) => store.register(projection).await.map(drop),
            Err(error) => Err(error),
        };
        match refused {
            Ok(()) => {
                assert_eq!(expected, "", "not refused: {create} / {apply}");
                return;
            }
            Err(error @ ProjectionError::Sql { .. }) if !expected.is_empty() => {
                assert!(error.to_string().contains(expected), "{error}");
            }
            Err(error) if expected.is_empty() => panic!("{create} / {apply}: {error}"),
            Err(error) => panic!("no file and line for {apply}: {error:?}"),
        }
        assert!(store.projections().await.unwrap().is_empty(), "nothing is left of it");
    }
}

async fn rows_of_a_statement_within_with_may_be_used(fixture: Fixture) {
    if fixture.is_sqlite() {
        return;
    }
    let store = fixture.store().await;
    let create = format!("{CREATE}; CREATE TABLE read_model.log (kind TEXT, n BIGINT)");
    let apply = "WITH changed AS (
            INSERT INTO read_model.totals AS t SELECT type, COUNT(*) FROM batch GROUP BY 1
            ON CONFLICT (kind) DO UPDATE SET n = t.n + EXCLUDED.n RETURNING kind, n)
        INSERT INTO read_model.log SELECT kind, n FROM changed";
    let projection = totals(&create, apply).build().unwrap();
    append(&store, "a", counted([1, 2])).await;
    caught_up(&store, &projection).await;
    let rows = fixture.rows("SELECT kind, n FROM read_model.log").await;
    assert_eq!(rows, [[json!("Counted"), json!(2)]]);
}

async fn sql_for_the_other_store_needs_no_new_version(fixture: Fixture) {
    let store = fixture.store().await;
    assert!(store.register(totals(CREATE, APPLY).build().unwrap()).await.unwrap().created);
    let changed = totals(CREATE, APPLY).apply_on_sqlite(format!("{APPLY} WHERE true"));
    let registered = store.register(changed.build().unwrap()).await;
    if fixture.is_sqlite() {
        let refused = registered.unwrap_err();
        let ProjectionError::Changed { what, .. } = &refused else { panic!("{refused:?}") };
        assert_eq!(what, "apply.sql");
    } else {
        assert!(!registered.unwrap().created, "the file for SQLite does not matter here");
    }
}

async fn view_of_another_projection_is_refused(fixture: Fixture) {
    let store = fixture.store().await;
    let create =
        format!("{CREATE}; CREATE VIEW read_model.shown AS SELECT * FROM read_model.totals");
    store.register(totals(&create, APPLY).build().unwrap()).await.unwrap();
    let other = Projection::sql("other", 1)
        .create("CREATE TABLE read_model.shown (n BIGINT)")
        .apply("INSERT INTO read_model.shown SELECT position FROM batch");
    match store.register(other.build().unwrap()).await.unwrap_err() {
        ProjectionError::TableTaken { table, owner, .. } => {
            assert_eq!((table.as_str(), owner.as_str()), ("shown", "totals"));
        }
        other => panic!("{other:?}"),
    }
}
