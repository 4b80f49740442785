//! Projections that cannot be run, each told with what to do.

use super::{CATCH_UP, INLINE};
use crate::shop::{Shop, on_both_stores};

on_both_stores! {
    sql_that_the_database_refuses_has_file_and_line,
    changed_definition_needs_a_new_version,
    two_projections_cannot_write_one_table,
    inline_projection_on_a_store_with_events_is_filled,
}

#[test]
fn project_without_projections_is_told() {
    let shop = Shop::sqlite();
    let ran = shop.run(&["run"]).fails(1, "there are no projections in ./projections");
    ran.says("`everfold init DIR`");
    assert!(!shop.folder.file("everfold.db").exists());
}

#[test]
fn files_that_are_wrong_have_file_and_line() {
    for (file, text, expected) in [
        (
            "projection.toml",
            "version = 1\nlifecycle = \"later\"",
            "projection.toml line 2: lifecycle must be",
        ),
        (
            "projection.toml",
            "version = 1\nlifecycle = \"inline\"\nkeys = \"stream\"",
            "line 3: keys is not a setting; did you mean key?",
        ),
        ("create.sql", "-- none\n", "projections/sums/create.sql:1: it makes no table"),
        (
            "apply.sql",
            "\n\nDROP TABLE read_model.sums",
            "projections/sums/apply.sql:3: DROP is not",
        ),
        ("aply.sql", "", "projections/sums/aply.sql is not read; did you mean apply.sql?"),
    ] {
        let shop = Shop::sqlite();
        shop.sums("sums", CATCH_UP);
        shop.folder.write(&format!("projections/sums/{file}"), text);
        shop.run(&["run"]).fails(1, expected).says("projection \"sums\"");
        assert!(!shop.folder.file("everfold.db").exists());
    }
}

async fn sql_that_the_database_refuses_has_file_and_line(shop: Shop) {
    shop.sums("sums", CATCH_UP);
    let create = "CREATE TABLE read_model.sums (stream TEXT PRIMARY KEY, n BIGINT, v BIGINT);\n\n\
                  CREATE INDEX sums_n ON\n  read_model.sums (nn);";
    shop.folder.write("projections/sums/create.sql", create);
    let ran = shop.run(&["run", "--once"]).exits(1).says("projections/sums/create.sql:");
    assert!(
        ["create.sql:3:", "create.sql:4:"].iter().any(|at| ran.stderr.contains(at)),
        "{ran:#?}"
    );
    shop.sums("sums", CATCH_UP);
    let apply =
        "\nINSERT INTO read_model.sums (stream, n, v)\nSELECT stream_id, amount, 1\nFROM batch";
    shop.folder.write("projections/sums/apply.sql", apply);
    let ran = shop.run(&["run", "--once"]).exits(1).says("projections/sums/apply.sql:");
    assert!(["apply.sql:2:", "apply.sql:3:"].iter().any(|at| ran.stderr.contains(at)), "{ran:#?}");
    assert!(ran.stderr.contains("amount"), "{ran:#?}");
    // Nothing is left of it.
    assert_eq!(
        shop.run(&["status", "--json"]).exits(0).json()["projections"],
        serde_json::json!([])
    );
}

async fn changed_definition_needs_a_new_version(shop: Shop) {
    shop.sums("sums", CATCH_UP);
    shop.run(&["run", "--once"]).done();
    shop.sums("sums", &format!("{CATCH_UP}events = [\"Counted\"]\n"));
    let ran = shop.run(&["run", "--once"]).exits(1).says("version 1 was changed");
    ran.says("raise its version");
    // Settings may change.
    shop.sums("sums", &format!("{CATCH_UP}batch_events = 10\n"));
    shop.run(&["run", "--once"]).done();
    shop.sums("sums", &CATCH_UP.replace("version = 1", "version = 2"));
    let ran = shop.run(&["run", "--once"]).exits(0);
    assert!(ran.stderr.contains("sums version 2 is building: "), "{ran:#?}");
    let versions: Vec<_> = {
        let json = shop.run(&["status", "sums", "--json"]).exits(0).json();
        json["projections"].as_array().unwrap().iter().map(|p| p["version"].clone()).collect()
    };
    assert_eq!(versions, [1, 2]);
}

async fn two_projections_cannot_write_one_table(shop: Shop) {
    shop.sums("sums", CATCH_UP);
    shop.run(&["run", "--once"]).done();
    let of = |file: &str| shop.folder.read(&format!("projections/sums/{file}"));
    shop.projection("other", CATCH_UP, &of("create.sql"), &of("apply.sql"));
    let ran = shop.run(&["run", "--once"]).exits(1).says("projection \"other\"");
    ran.says("read_model.sums, which belongs to \"sums\"");
}

async fn inline_projection_on_a_store_with_events_is_filled(shop: Shop) {
    shop.sums("sums", INLINE);
    shop.numbers("events", &[("a", Some(1))]);
    let ran = shop.run(&["run", "--once"]).exits(0);
    assert!(
        ran.stderr.contains("sums version 1 is building: the store has events already"),
        "{ran:#?}"
    );
    shop.run(&["wait", "sums", "--timeout", "0"]).done();
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|1"]);
    shop.numbers("more", &[("a", Some(2))]);
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|3"]);
}
