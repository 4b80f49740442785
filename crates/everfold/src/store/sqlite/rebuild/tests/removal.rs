//! Removing generations: what may go, that all of it goes, and in small steps.

use std::sync::Mutex;

use super::*;
use crate::projection::handler::{HandlerBatch, HandlerError, SqliteHandler};

/// Everything in the file that begins like this.
fn named(connection: &Connection, prefix: &str) -> Vec<String> {
    let sql = "SELECT name FROM sqlite_schema WHERE substr(name, 1, length(?1)) = ?1 ORDER BY name";
    let mut statement = connection.prepare(sql).unwrap();
    statement.query_map([prefix], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

fn count(connection: &Connection, sql: &str) -> i64 {
    connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// Steps until it is gone; how many there were, and the longest.
fn remove(
    connection: &Connection,
    generation: i32,
    projector: Option<&Projector>,
) -> Result<(usize, Duration), ProjectionError> {
    remove::begin(connection, generation, "me")?;
    let (mut rows, mut steps, mut longest) = (500, 0, Duration::ZERO);
    loop {
        let begun = std::time::Instant::now();
        let stepped = remove::without_foreign_keys(connection, || {
            in_transaction(connection, TTL, |connection| {
                remove::step(connection, generation, projector, "me", rows)
            })
        })?;
        longest = longest.max(begun.elapsed());
        steps += 1;
        match stepped {
            remove::Stepped::More(next) => rows = next,
            remove::Stepped::Gone => return Ok((steps, longest)),
        }
    }
}

const CREATE: &str = "
    CREATE TABLE read_model.totals (stream text PRIMARY KEY, above text REFERENCES read_model.totals (stream));
    CREATE INDEX totals_above ON read_model.totals (above);
    CREATE TABLE read_model.others (a text, b text, PRIMARY KEY (a, b)) WITHOUT ROWID;
    CREATE VIEW read_model.short AS SELECT stream FROM read_model.totals";

#[test]
fn nothing_of_it_is_left_and_nothing_else_is_touched() {
    let connection = fresh();
    connection.pragma_update(None, "foreign_keys", true).unwrap();
    let old = known(&connection, &totals(1, CREATE));
    let new = known(&connection, &totals(2, CREATE));
    assert_eq!(named(&connection, "read_model_").len(), 3);
    for home in [&old.home, &new.home] {
        let fill = format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
             INSERT INTO {home}totals SELECT i, max(i - 1, 1) FROM n;
             INSERT INTO {home}others SELECT stream, above FROM {home}totals;"
        );
        connection.execute_batch(&fill).unwrap();
    }
    for table in ["everfold_skips", "everfold_dead_letters"] {
        let (more, values) = match table {
            "everfold_skips" => ("reason", "'paused'"),
            _ => ("error", "'wrong'"),
        };
        let insert = format!(
            "INSERT INTO {table} (generation, position, key, {more}) VALUES
             ({0}, 1, 'a', {values}), ({1}, 1, 'a', {values})",
            old.id, new.id
        );
        connection.execute_batch(&insert).unwrap();
    }

    let error = remove(&connection, old.id, None).unwrap_err().to_string();
    assert!(error.contains("has readers"), "{error}");
    views::switch(&connection, new.id).unwrap();
    let before = named(&connection, &new.home);
    let (steps, _) = remove(&connection, old.id, None).unwrap();
    assert!(steps > 5, "rows go in several transactions: {steps}");
    assert_eq!(named(&connection, &old.home), [] as [&str; 0]);
    assert_eq!(named(&connection, &new.home), before);
    assert_eq!(named(&connection, "read_model_").len(), 3, "they show the new one");
    for table in ["everfold_checkpoints", "everfold_skips", "everfold_dead_letters"] {
        let of = |id| {
            count(&connection, &format!("SELECT count(*) FROM {table} WHERE generation = {id}"))
        };
        assert_eq!(of(old.id), 0, "{table}");
        assert!(of(new.id) > 0, "{table}");
    }
    assert_eq!(count(&connection, "SELECT count(*) FROM read_model_totals"), 3_000);
    assert_eq!(count(&connection, "PRAGMA foreign_keys"), 1, "it is as it was");
    assert!(remove::leftovers(&connection).unwrap().is_empty());
    assert_eq!(remove(&connection, old.id, None).unwrap().0, 1, "it is gone already");
}

#[test]
fn what_a_rebuild_fills_or_may_need_stays() {
    let connection = fresh();
    let projection = plain(1);
    let active = known(&connection, &projection);
    let (row, _) = asked(&connection, &projection);
    let held = taken(&connection, row.id, 1, TTL);
    let target = target::make(&connection, held, &projection).unwrap();
    let error = remove(&connection, target.id, None).unwrap_err().to_string();
    assert!(error.contains("fills"), "{error}");
    views::switch(&connection, target.id).unwrap();
    let error = remove(&connection, active.id, None).unwrap_err().to_string();
    assert!(error.contains("may still need"), "{error}");
    target::retire(&connection, active.id, "worker").unwrap();
    let left = |connection: &Connection| -> Vec<i32> {
        remove::leftovers(connection).unwrap().iter().map(|generation| generation.id).collect()
    };
    assert_eq!(left(&connection), [active.id]);
    remove(&connection, active.id, None).unwrap();
    assert_eq!(left(&connection), [] as [i32; 0]);
}

#[test]
fn removal_that_was_cut_short_goes_on() {
    let connection = fresh();
    let old = known(&connection, &plain(1));
    let new = known(&connection, &plain(2));
    let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) \
        INSERT INTO g1_totals SELECT i FROM n";
    connection.execute(fill, []).unwrap();
    views::switch(&connection, new.id).unwrap();
    remove::begin(&connection, old.id, "me").unwrap();
    remove::step(&connection, old.id, None, "me", 500).unwrap();
    assert_eq!(count(&connection, "SELECT count(*) FROM g1_totals"), 1_500);
    // Nobody runs it, and it is found again.
    assert_eq!(tick(&connection, 1, &[old.id]), [] as [i32; 0]);
    assert_eq!(remove::leftovers(&connection).unwrap()[0].id, old.id);
    remove(&connection, old.id, None).unwrap();
    assert_eq!(named(&connection, &old.home), [] as [&str; 0]);
}

/// Makes a table outside its prefix, and removes it.
struct Outside(Mutex<bool>);

impl SqliteHandler for Outside {
    fn set_up(&self, home: &str, connection: &Connection) -> Result<(), HandlerError> {
        let create = format!("CREATE TABLE {home}words (word); CREATE TABLE outside_{home} (a)");
        Ok(connection.execute_batch(&create)?)
    }

    fn apply(&self, _: HandlerBatch<'_>, _: &Connection) -> Result<(), HandlerError> {
        Ok(())
    }

    fn tear_down(&self, home: &str, connection: &Connection) -> Result<(), HandlerError> {
        connection.execute_batch(&format!("DROP TABLE outside_{home}"))?;
        match *self.0.lock().unwrap() {
            true => Err("not now".into()),
            false => Ok(()),
        }
    }
}

#[test]
fn handler_tears_down_what_it_made_elsewhere_in_the_last_step() {
    let connection = fresh();
    let handler = std::sync::Arc::new(Outside(Mutex::new(true)));
    let projector = Projector::SqliteHandler(handler.clone());
    let made = |version| {
        let outside = Outside(Mutex::new(false));
        Projection::sqlite_handler("outside", version, outside).build().unwrap()
    };
    let old = known(&connection, &made(1));
    let new = known(&connection, &made(2));
    views::switch(&connection, new.id).unwrap();
    let error = remove(&connection, old.id, Some(&projector)).unwrap_err().to_string();
    assert!(error.contains("tear-down") && error.contains("not now"), "{error}");
    assert_eq!(named(&connection, "outside_g1").len(), 1, "what failed is undone");
    *handler.0.lock().unwrap() = false;
    remove(&connection, old.id, Some(&projector)).unwrap();
    assert_eq!(named(&connection, "outside_g1"), [] as [&str; 0]);
    assert_eq!(named(&connection, "outside_g2").len(), 1);
}
