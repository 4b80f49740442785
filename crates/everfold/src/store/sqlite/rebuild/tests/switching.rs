//! What readers see, and which skips are owed, when generations change places.

use super::*;

fn read(connection: &Connection, sql: &str) -> Vec<String> {
    let mut statement = connection.prepare(sql).unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

fn columns(connection: &Connection, view: &str) -> Vec<String> {
    read(connection, &format!("SELECT name FROM pragma_table_info('{view}')"))
}

fn version(connection: &Connection, number: u32, columns: &str) -> Generation {
    let create = format!("CREATE TABLE read_model.totals ({columns})");
    let generation = known(connection, &totals(number, &create));
    let insert = format!("INSERT INTO {}totals (stream) VALUES ('of {number}')", generation.home);
    connection.execute(&insert, []).unwrap();
    generation
}

const PLAIN: &str = "SELECT stream FROM read_model_totals";

#[test]
fn columns_that_fit_keep_the_name_there_and_back() {
    let connection = fresh();
    let one = version(&connection, 1, "stream text");
    let two = version(&connection, 2, "stream text, n integer");
    assert_eq!(read(&connection, PLAIN), ["of 1"]);
    views::switch(&connection, two.id).unwrap();
    assert_eq!(read(&connection, PLAIN), ["of 2"]);
    assert_eq!(columns(&connection, "read_model_totals"), ["stream", "n"]);
    views::switch(&connection, one.id).unwrap();
    assert_eq!(read(&connection, PLAIN), ["of 1"]);
    assert_eq!(columns(&connection, "read_model_totals"), ["stream", "n"], "none goes away");
    views::switch(&connection, two.id).unwrap();
    assert_eq!(read(&connection, PLAIN), ["of 2"]);
    let active = "SELECT active_generation || '' FROM everfold_projections";
    assert_eq!(read(&connection, active), [two.id.to_string()]);
}

#[test]
fn columns_that_do_not_fit_get_a_name_of_their_version() {
    let connection = fresh();
    let one = version(&connection, 1, "stream text");
    let two = version(&connection, 2, "n integer, stream text");
    views::switch(&connection, two.id).unwrap();
    let own = "SELECT stream FROM read_model_totals_v2";
    assert_eq!(read(&connection, PLAIN), ["of 1"], "the old name shows the old one");
    assert_eq!(read(&connection, own), ["of 2"]);
    views::switch(&connection, one.id).unwrap();
    views::switch(&connection, two.id).unwrap();
    assert_eq!(
        (read(&connection, PLAIN), read(&connection, own)),
        (vec!["of 1".into()], vec!["of 2".into()])
    );

    remove::begin(&connection, one.id, "me").unwrap();
    assert_eq!(columns(&connection, "read_model_totals"), [] as [&str; 0], "until it is removed");
    assert_eq!(read(&connection, own), ["of 2"]);
}

#[test]
fn what_belongs_to_somebody_else_is_not_replaced() {
    let connection = fresh();
    version(&connection, 1, "stream text");
    let two = version(&connection, 2, "n integer, stream text");
    connection.execute("CREATE TABLE read_model_totals_v2 (mine)", []).unwrap();
    let error = views::switch(&connection, two.id).unwrap_err().to_string();
    assert!(error.contains("read_model_totals_v2 already"), "{error}");
}

#[test]
fn older_snapshot_sees_the_older_read_model_whole() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Connection::open(folder.path().join("store.db")).unwrap();
    let connection = open();
    connection.execute_batch("PRAGMA journal_mode = WAL").unwrap();
    schema::migrate(&connection, TTL).unwrap();
    register_functions(&connection).unwrap();
    let one = version(&connection, 1, "stream text");
    let two = version(&connection, 2, "stream text");
    let reader = open();
    reader.execute_batch("BEGIN").unwrap();
    assert_eq!(read(&reader, PLAIN), ["of 1"]);
    views::switch(&connection, two.id).unwrap();
    remove::begin(&connection, one.id, "me").unwrap();
    while let remove::Stepped::More(_) = remove::step(&connection, one.id, None, "me", 500).unwrap()
    {
    }
    assert_eq!(read(&reader, PLAIN), ["of 1"]);
    reader.execute_batch("COMMIT").unwrap();
    assert_eq!(read(&reader, PLAIN), ["of 2"]);
}

#[test]
fn one_that_is_fed_behind_the_appends_owes_what_is_up_to_its_checkpoint() {
    let connection = fresh();
    let one = known(&connection, &plain(1));
    let prepare = format!(
        "UPDATE everfold_checkpoints SET position = 2 + shard WHERE generation = {0};
         INSERT INTO everfold_skips (generation, position, key, reason)
         VALUES ({0}, 1, 'a', 'r'), ({0}, 2, 'b', 'r'), ({0}, 3, 'a', 'r')",
        one.id
    );
    connection.execute_batch(&prepare).unwrap();
    let owed = |status: &str| {
        let set = "UPDATE everfold_generations SET status = ?1";
        connection.execute(set, [status]).unwrap();
        owed_to(&connection, one.id).unwrap()
    };
    for status in ["building", "kept", "rebuilding"] {
        assert_eq!(owed(status), 2, "{status}");
    }
    for status in ["active", "paused", "failed"] {
        assert_eq!(owed(status), i64::MAX, "{status}: readers see it, appends feed it");
    }
    connection.execute("UPDATE everfold_projections SET active_generation = NULL", []).unwrap();
    assert_eq!(owed("paused"), 2);
}
