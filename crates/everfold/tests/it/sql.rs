//! What people write in SQL projections, on every store.

use everfold::{
    ExpectedVersion, NewEvent, Projection, ProjectionBuilder, SqlBody, Store, StoreOptions,
    Upcasters,
};
use serde_json::{Value, json};

use crate::fixture::{Fixture, append, caught_up, event, failed, on_every_store};

on_every_store! {
    upcasters_bring_old_events_to_todays_shape,
    upcaster_in_rust_alone_is_refused,
    statements_of_every_kind_run,
    table_is_known_by_its_bare_name,
    failure_names_file_line_and_event,
    key_that_is_missing_is_refused,
    events_with_one_key_keep_their_order_across_streams,
}

fn sql(create: &str, apply: &str) -> ProjectionBuilder<SqlBody> {
    Projection::sql("totals", 1).create(create).apply(apply)
}

/// An event with an older shape of data.
fn old(schema_version: u32, data: Value) -> NewEvent {
    event("Paid", data).with_schema_version(schema_version)
}

async fn upcasters_bring_old_events_to_todays_shape(fixture: Fixture) {
    let store = fixture.store().await;
    let paid = |name: &str| {
        let table = format!(
            "CREATE TABLE read_model.{name} (position BIGINT, cents BIGINT, currency TEXT, shape BIGINT)"
        );
        let apply = format!(
            "INSERT INTO read_model.{name} SELECT position, CAST(data->>'cents' AS BIGINT), \
             data->>'currency', schema_version FROM batch"
        );
        // Version 1 had euros; version 2 cents, always of euros; version 3 any currency.
        Projection::sql(name, 1)
            .create(table)
            .apply(apply)
            .upcaster(
                "Paid",
                1,
                "jsonb_build_object('cents',\n  100 * CAST(data->>'euros' AS integer)) -- it's ; 100",
            )
            .upcaster_on_sqlite("Paid", 1, "json_object('cents', 100 * (data->>'euros'))")
            .upcaster("Paid", 2, "data || '{\"currency\": \"EUR\"}'")
            .upcaster_on_sqlite("Paid", 2, "json_set(data, '$.currency', 'EUR')")
    };
    let (behind, inline) =
        (paid("behind").build().unwrap(), paid("at_once").inline().build().unwrap());
    store.register(inline).await.unwrap();
    let events = [
        old(1, json!({ "euros": 3 })),
        old(2, json!({ "cents": 250 })),
        old(3, json!({ "cents": 99, "currency": "SEK" })),
        event("Other", json!({ "cents": 1, "currency": "none" })),
    ];
    append(&store, "a", events).await;
    caught_up(&store, &behind).await;
    let expected = [
        [json!(1), json!(300), json!("EUR"), json!(3)],
        [json!(2), json!(250), json!("EUR"), json!(3)],
        [json!(3), json!(99), json!("SEK"), json!(3)],
        [json!(4), json!(1), json!("none"), json!(1)],
    ];
    for table in ["at_once", "behind"] {
        let sql = format!("SELECT * FROM read_model.{table} ORDER BY position");
        assert_eq!(fixture.rows(&sql).await, expected, "{table}");
    }
}

async fn upcaster_in_rust_alone_is_refused(fixture: Fixture) {
    let with_upcaster = |options: &mut StoreOptions| {
        let upcasters = Upcasters::new().add("Paid", 1, Ok::<Value, String>);
        options.upcasters = std::sync::Arc::new(upcasters);
    };
    let store = fixture.store_with(with_upcaster).await;
    let paid = || {
        let create = "CREATE TABLE read_model.totals (x TEXT)";
        sql(create, "INSERT INTO read_model.totals SELECT type FROM batch").events(["Paid"])
    };
    let refused = store.register(paid().build().unwrap()).await.unwrap_err();
    assert!(refused.to_string().contains("upcasters/Paid.1.sql"), "{refused}");
    store.register(paid().upcaster("Paid", 1, "data").build().unwrap()).await.unwrap();
}

async fn statements_of_every_kind_run(fixture: Fixture) {
    let store = fixture.store().await;
    // Staging, composite keys, quotes, comments, other line ends, names in strings.
    let create = "\u{feff}-- tables; of it\r\nCREATE TABLE read_model.staged (\"Größe\" TEXT, n BIGINT);\r\n\
                  CREATE TABLE READ_MODEL.totals (a TEXT, b TEXT, n BIGINT, PRIMARY KEY (a, b));\r\n\
                  CREATE UNIQUE INDEX staged_idx ON \"read_model\".\"staged\" (\"Größe\");";
    let apply = "INSERT INTO read_model.totals VALUES ('read_model.totals; it''s', '--', 0)\r\n\
                 ON CONFLICT DO NOTHING;\r\n\
                 DELETE FROM read_model.staged /* read_model.gone; 'x */;;\r\n\
                 INSERT INTO read_model.staged\r\n\
                 SELECT stream_id, SUM(CAST(data->>'n' AS BIGINT)) FROM batch GROUP BY stream_id;\r\n\
                 WITH RECURSIVE steps(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM steps WHERE n < 2),\r\n\
                 batches AS (SELECT COUNT(*) AS c FROM batch)\r\n\
                 INSERT INTO Read_Model.Totals AS t (a, b, n)\r\n\
                 SELECT s.\"Größe\", 'step ; ' || CAST(steps.n AS TEXT), s.n\r\n\
                 FROM read_model.staged AS s CROSS JOIN steps CROSS JOIN batches WHERE c > 0\r\n\
                 ON CONFLICT (a, b) DO UPDATE SET n = t.n + EXCLUDED.n;\r\n\
                 UPDATE read_model.totals SET n = n + (SELECT COUNT(*) FROM batch) WHERE b = '--';";
    let totals = sql(create, apply).build().unwrap();
    append(&store, "x", [event("E", json!({ "n": 1 })), event("E", json!({ "n": 2 }))]).await;
    caught_up(&store, &totals).await;
    append(&store, "x", [event("E", json!({ "n": 4 }))]).await;
    append(&store, "y", [event("E", json!({ "n": 8 }))]).await;
    caught_up(&store, &totals).await;
    let mut found = fixture.rows("SELECT a, b, n FROM read_model.totals").await;
    found.sort_by_key(|row| format!("{row:?}"));
    let expected = [
        [json!("read_model.totals; it's"), json!("--"), json!(4)],
        [json!("x"), json!("step ; 1"), json!(7)],
        [json!("x"), json!("step ; 2"), json!(7)],
        [json!("y"), json!("step ; 1"), json!(8)],
        [json!("y"), json!("step ; 2"), json!(8)],
    ];
    assert_eq!(found, expected);
}

async fn table_is_known_by_its_bare_name(fixture: Fixture) {
    let store = fixture.store().await;
    let totals = sql(
        "CREATE TABLE read_model.totals (stream TEXT PRIMARY KEY, n BIGINT CHECK (totals.n >= 0))",
        "INSERT INTO read_model.totals (stream, n) SELECT stream_id, COUNT(*) FROM batch GROUP BY 1
         ON CONFLICT (stream) DO UPDATE SET n = totals.n + EXCLUDED.n;
         DELETE FROM read_model.totals WHERE totals.n > 2 AND EXISTS (SELECT 1 FROM batch)",
    );
    let totals = totals.build().unwrap();
    for _ in 0..2 {
        append(&store, "a", [event("E", json!({}))]).await;
        append(&store, "b", [event("E", json!({})), event("E", json!({}))]).await;
        caught_up(&store, &totals).await;
    }
    assert_eq!(fixture.rows("SELECT * FROM read_model.totals").await, [[json!("a"), json!(2)]]);
}

async fn failure_names_file_line_and_event(fixture: Fixture) {
    let store = fixture.store().await;
    let mut settings = everfold::ProjectionSettings::default();
    settings.retries = 0;
    let totals = sql(
        "CREATE TABLE read_model.totals (stream TEXT NOT NULL, n BIGINT NOT NULL)",
        "-- one\n\nDELETE FROM read_model.totals WHERE n = 0;\n\n\
         INSERT INTO read_model.totals\nSELECT stream_id,\n CAST(data->>'n' AS BIGINT) FROM batch",
    );
    let totals = totals.settings(settings).build().unwrap();
    append(&store, "a", [event("E", json!({ "n": 1 })), event("E", json!({}))]).await;
    let reason = failed(&store, &totals).await;
    let place = "apply:5";
    assert!(reason.contains(place) && reason.contains("position 2"), "{reason}");
    assert!(reason.to_lowercase().contains("null"), "{reason}");
    let rows = fixture.rows("SELECT n FROM read_model.totals").await;
    assert_eq!(rows, [[json!(1)]], "what is before it is applied");
}

async fn key_that_is_missing_is_refused(fixture: Fixture) {
    let store = fixture.store().await;
    let by_tenant = |name: &str| {
        Projection::sql(name, 1)
            .create(format!("CREATE TABLE read_model.{name} (tenant TEXT, n BIGINT)"))
            .apply(format!(
                "INSERT INTO read_model.{name} SELECT data->>'tenant', COUNT(*) FROM batch GROUP BY 1"
            ))
            .key_fields(["data.tenant"])
    };
    store.register(by_tenant("at_once").inline().build().unwrap()).await.unwrap();
    for data in [json!({}), json!({ "tenant": null }), json!([])] {
        let bad = store.append("a", ExpectedVersion::Any, [event("E", data)]).await.unwrap_err();
        assert!(bad.to_string().contains("data.tenant"), "{bad}");
    }
    append(&store, "a", [event("E", json!({ "tenant": "t" }))]).await;
    assert_eq!(fixture.rows("SELECT * FROM read_model.at_once").await, [[json!("t"), json!(1)]]);
}

/// Two streams with one key: each event comes behind the one before it.
async fn events_with_one_key_keep_their_order_across_streams(fixture: Fixture) {
    let store = fixture.store().await;
    let last = |name: &str| {
        Projection::sql(name, 1)
            .create(format!(
                "CREATE TABLE read_model.{name} (tenant TEXT, region TEXT, chain TEXT NOT NULL, \
                 PRIMARY KEY (tenant, region))"
            ))
            .apply(format!(
                "INSERT INTO read_model.{name} AS t (tenant, region, chain)
                 SELECT data->>'tenant', metadata->>'region', string_agg(data->>'n', ',' ORDER BY position)
                 FROM batch GROUP BY 1, 2
                 ON CONFLICT (tenant, region) DO UPDATE SET chain = t.chain || ',' || EXCLUDED.chain"
            ))
            .key_fields(["data.tenant", "metadata.region"])
    };
    store.register(last("at_once").inline().build().unwrap()).await.unwrap();
    let mut appends = Vec::new();
    for n in 0..40 {
        let store: Store = store.clone();
        appends.push(tokio::spawn(async move {
            let data = json!({ "tenant": "t", "n": n.to_string() });
            let metadata = everfold::Metadata::new().with("region", "north");
            let event = event("E", data).with_metadata(metadata);
            append(&store, &format!("stream-{}", n % 7), [event]).await
        }));
    }
    for appended in appends {
        appended.await.unwrap();
    }
    let log = crate::fixture::read_all(&store).await;
    let number = |data: Value| data["n"].as_str().unwrap().to_owned();
    let chain: Vec<_> = log.iter().map(|event| number(event.data_as().unwrap())).collect();
    let expected = [[json!(chain.join(","))]];
    assert_eq!(fixture.rows("SELECT chain FROM read_model.at_once").await, expected);

    let mut settings = everfold::ProjectionSettings::default();
    settings.batch_events = 3;
    let behind = last("behind").shards(3).settings(settings).build().unwrap();
    caught_up(&store, &behind).await;
    assert_eq!(fixture.rows("SELECT chain FROM read_model.behind").await, expected);
}
