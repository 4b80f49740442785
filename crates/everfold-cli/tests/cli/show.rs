//! A look at read models.

use crate::rebuild::{doubled, given};
use crate::run::INLINE;
use crate::shop::{Shop, on_both_stores};
use crate::support::field;

on_both_stores! {
    rows_are_shown_as_readers_see_them,
    what_cannot_be_shown_is_told,
    version_with_other_columns_is_shown_by_its_own_name,
}

async fn rows_are_shown_as_readers_see_them(shop: Shop) {
    given(&shop, INLINE);
    let table = if shop.is_sqlite() { "read_model_sums" } else { "read_model.sums" };
    let ran = shop.run(&["show", "sums"]).done();
    assert_eq!(ran.stdout, format!("{table}: 2 rows\nstream  n  v\na       4  2\nb       2  1\n"));
    let ran = shop.run(&["show", "sums", "--limit", "1"]).done();
    assert_eq!(ran.stdout, format!("{table}: 1 row, and more\nstream  n  v\na       4  2\n"));
    let ran = shop.run(&["show", "sums", "--where", "stream=b", "--where", "n=2"]).done();
    assert_eq!(ran.stdout, format!("{table}: 1 row\nstream  n  v\nb       2  1\n"));
    let ran = shop.run(&["show", "sums", "--where", "stream=nobody"]).done();
    assert_eq!(ran.stdout, format!("{table}: 0 rows\n"));
    let ran = shop.run(&["show", "sums", "--json"]).done();
    let lines = ran.json_lines();
    assert_eq!(field(&lines, "table"), [table, table]);
    assert_eq!(lines[0]["row"], serde_json::json!({ "stream": "a", "n": 4, "v": 2 }));
    assert!(ran.stdout.contains("{\"stream\":\"a\",\"n\":4,\"v\":2}"), "columns keep their order");

    // Readers see the old version until the switch.
    doubled(&shop, "inline");
    shop.run(&["rebuild", "sums", "--no-promote"]).done();
    shop.run(&["show", "sums"]).done().prints("a       4  2");
    shop.run(&["promote", "sums"]).done();
    shop.run(&["show", "sums"]).done().prints("a       8  2");
}

async fn what_cannot_be_shown_is_told(shop: Shop) {
    given(&shop, INLINE);
    shop.run(&["show", "sum"]).fails(1, "did you mean \"sums\"?");
    shop.run(&["show", "sums", "--table", "sum"]).fails(1, "has no table \"sum\"; there are: sums");
    let ran = shop.run(&["show", "sums", "--where", "m=1"]);
    ran.fails(1, "has no column \"m\" in read_model");
    shop.run(&["show", "sums", "--where", "m"]).fails(2, "use COLUMN=VALUE");
    shop.sums("more", INLINE);
    // Registered, and not filled yet.
    shop.run(&["rebuild", "more", "--detach"]).exits(0);
    shop.run(&["show", "more"]).fails(1, "there is no version that readers see yet");
}

async fn version_with_other_columns_is_shown_by_its_own_name(shop: Shop) {
    given(&shop, INLINE);
    shop.projection(
        "sums",
        "version = 2\nlifecycle = \"inline\"\n",
        "CREATE TABLE read_model.sums (n BIGINT NOT NULL, stream TEXT PRIMARY KEY)",
        "INSERT INTO read_model.sums AS t (n, stream) SELECT COUNT(*), stream_id FROM batch \
         WHERE true GROUP BY stream_id ON CONFLICT (stream) DO UPDATE SET n = t.n + EXCLUDED.n",
    );
    shop.run(&["rebuild", "sums"]).exits(0);
    let table = if shop.is_sqlite() { "read_model_sums_v2" } else { "read_model.sums_v2" };
    let ran = shop.run(&["show", "sums"]).done();
    assert_eq!(ran.stdout, format!("{table}: 2 rows\nn  stream\n1  b\n2  a\n"));
}
