use std::fs;

use tempfile::TempDir;

use super::*;
use crate::StoreKind;
use crate::projection::definition::{Body, Lifecycle};
use crate::projection::script::SqlScripts;

const TOML: &str = "version = 1\nlifecycle = \"inline\"\nevents = [\"A\", \"B.c\"]\n";
const CREATE_SQL: &str = "CREATE TABLE read_model.t (id TEXT PRIMARY KEY)";
const APPLY_SQL: &str = "INSERT INTO read_model.t SELECT stream_id FROM batch";

/// A project with the projection `totals`.
struct Project(TempDir);

impl Project {
    fn empty() -> Project {
        Project(tempfile::tempdir().unwrap())
    }

    fn new() -> Project {
        let project = Project::empty();
        project.write("projections/totals/projection.toml", TOML);
        project.write("projections/totals/create.sql", CREATE_SQL);
        project.write("projections/totals/apply.sql", APPLY_SQL);
        project
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn load(&self) -> Result<Vec<Projection>, ProjectionError> {
        Projection::load_all(self.0.path())
    }

    fn one(&self) -> Projection {
        let mut projections = self.load().unwrap();
        assert_eq!(projections.len(), 1);
        projections.remove(0)
    }

    #[track_caller]
    fn refused(&self, parts: &[&str]) {
        let error = self.load().unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "no {part} in {error}");
        }
    }
}

fn scripts(projection: &Projection) -> &SqlScripts {
    match &projection.definition.body {
        Body::Sql(scripts) => scripts,
        other => panic!("not SQL: {other:?}"),
    }
}

#[test]
fn project_without_projections_has_none() {
    assert!(Project::empty().load().unwrap().is_empty());
    let project = Project::empty();
    project.write("projections/README.md", "nothing yet");
    project.write("projections/.hidden/x", "");
    assert!(project.load().unwrap().is_empty());
}

#[test]
fn folders_are_read_in_the_order_of_their_names() {
    let project = Project::new();
    for (file, text) in
        [("projection.toml", TOML), ("create.sql", CREATE_SQL), ("apply.sql", APPLY_SQL)]
    {
        project.write(&format!("projections/alpha/{file}"), text);
    }
    project.write("projections/totals/notes.md", "ours");
    let names: Vec<_> = project.load().unwrap().iter().map(|p| p.name().to_owned()).collect();
    assert_eq!(names, ["alpha", "totals"]);
    let totals = project.load().unwrap().pop().unwrap();
    assert_eq!((totals.version(), totals.lifecycle()), (1, Lifecycle::Inline));
    let types = totals.definition.event_types.as_deref();
    assert_eq!(types, Some(&["A".to_owned(), "B.c".to_owned()][..]));
}

#[test]
fn files_for_sqlite_take_over_there() {
    let project = Project::new();
    let other = "DELETE FROM read_model.t WHERE id IN (SELECT stream_id FROM batch)";
    project.write("projections/totals/apply.sqlite.sql", other);
    let projection = project.one();
    let scripts = scripts(&projection);
    assert_eq!(scripts.postgres.apply.text, APPLY_SQL);
    assert_eq!(scripts.sqlite.apply.text, other);
    assert_eq!(scripts.sqlite.create, scripts.postgres.create);
    assert!(scripts.sqlite.apply.file.ends_with("projections/totals/apply.sqlite.sql"));
}

#[test]
fn line_ends_do_not_change_the_hash() {
    let project = Project::new();
    project.write("projections/totals/apply.sql", format!("-- why\n{APPLY_SQL}\n"));
    let hash = project.one().definition.hash(StoreKind::Sqlite);
    project.write("projections/totals/apply.sql", format!("\u{feff}-- why\r\n{APPLY_SQL}\r\n"));
    assert_eq!(project.one().definition.hash(StoreKind::Sqlite), hash);
    project.write("projections/totals/apply.sql", format!("-- else\n{APPLY_SQL}\n"));
    assert_ne!(project.one().definition.hash(StoreKind::Sqlite), hash);
}

#[test]
fn upcasters_go_to_those_that_want_their_type() {
    let project = Project::new();
    project.write("upcasters/A.1.sql", "data || '{\"new\": 1}'");
    project.write("upcasters/A.1.sqlite.sql", "json_set(data, '$.new', 1)");
    project.write("upcasters/A.2.sql", "data");
    project.write("upcasters/B.c.1.sql", "data");
    project.write("upcasters/Other.1.sql", "data");
    project.write("upcasters/README.md", "how they work");
    let projection = project.one();
    let SqlScripts { postgres, sqlite } = scripts(&projection);
    let steps: Vec<_> =
        postgres.upcasters.iter().map(|s| (s.event_type.as_str(), s.schema_version)).collect();
    assert_eq!(steps, [("A", 1), ("A", 2), ("B.c", 1)]);
    assert_eq!(postgres.upcasters[0].expression.text, "data || '{\"new\": 1}'");
    assert_eq!(sqlite.upcasters[0].expression.text, "json_set(data, '$.new', 1)");
    assert_eq!(sqlite.upcasters[1], postgres.upcasters[1]);
}

#[test]
fn bad_upcasters_are_refused() {
    for (name, text, expected) in [
        ("A.sql", "data", "A.sql: an upcaster is called <event type>.<schema version>.sql"),
        ("A.x.sql", "data", "is called <event type>.<schema version>.sql"),
        ("A.0.sql", "data", "is called <event type>.<schema version>.sql"),
        (".1.sqlite.sql", "data", ""),
        ("A.1.sqlite.sql", "data", "there is no A.1.sql that this takes over from"),
        ("A.1.sql", "", "A.1.sql:1: an upcaster is one SQL expression"),
        ("A.1.sql", "data) OR (true", "A.1.sql:1: "),
        ("A.1.sql", "data), x AS (SELECT '", "A.1.sql:1: the string"),
        ("A.1.sql", "data) || (x", "do not match"),
    ] {
        let project = Project::new();
        project.write(&format!("upcasters/{name}"), text);
        if expected.is_empty() {
            project.one();
        } else {
            project.refused(&[expected, "upcasters"]);
        }
    }
}

#[test]
fn missing_and_mistyped_files_are_named() {
    for file in ["projection.toml", "create.sql", "apply.sql"] {
        let project = Project::new();
        fs::remove_file(project.0.path().join("projections/totals").join(file)).unwrap();
        project.refused(&["projection \"totals\"", &format!("{file} is missing; add it")]);
    }
    let project = Project::new();
    project.write("projections/totals/aply.sql", APPLY_SQL);
    project.refused(&["aply.sql is not read; did you mean apply.sql?"]);
    let project = Project::new();
    project.write("projections/totals/something_else.sql", APPLY_SQL);
    project.refused(&[
        "something_else.sql is not read; the files of a projection are projection.toml",
    ]);
}

#[test]
fn bad_names_are_refused() {
    for name in ["Totals", "1st", "a-b", "a\"; DROP TABLE x; --", "größe", &"a".repeat(41)] {
        let project = Project::new();
        project.write(&format!("projections/{name}/projection.toml"), TOML);
        project.refused(&["cannot be a projection's name", "give it another"]);
    }
}

#[test]
fn bad_settings_have_file_and_line() {
    for (text, expected) in [
        ("version = 0\nlifecycle = \"inline\"", "projection.toml line 1: version must be"),
        (
            "version = 1\nlifecyle = \"inline\"",
            "projection.toml line 2: lifecyle is not a setting; did you mean lifecycle?",
        ),
        (
            "version = 1\nlifecycle = \"inline\"\n\nshards = 2",
            "projection.toml line 4: shards is for catch-up",
        ),
        (
            "version = 1\nlifecycle = \"catch-up\"\nshards = 2000",
            "projection.toml line 3: shards must be a whole number from 1 to 1024",
        ),
        (
            "version = 1\nlifecycle = \"catch-up\"\nretry_delay = \"1m\"",
            "projection.toml line 3: retry_delay (60s) is longer than retry_delay_max",
        ),
    ] {
        let project = Project::new();
        project.write("projections/totals/projection.toml", text);
        project.refused(&["projection \"totals\": ", "projections/totals/", expected]);
    }
}

#[test]
fn bad_sql_has_file_and_line() {
    let project = Project::new();
    project.write("projections/totals/apply.sql", format!("{APPLY_SQL};\n\nSELECT 'a"));
    project.refused(&["projection \"totals\": ", "apply.sql:3: the string that begins here"]);
    let project = Project::new();
    project.write("projections/totals/create.sqlite.sql", "-- later\n\nCREATE TABLE t (id TEXT)");
    project.refused(&["create.sqlite.sql:3: the table t is outside the read model"]);
}

#[test]
fn files_that_cannot_be_read_are_told() {
    let project = Project::new();
    project.write("projections/totals/apply.sql", [b'a', 0xff]);
    project.refused(&["apply.sql: it is not UTF-8"]);
    let project = Project::new();
    fs::create_dir_all(project.0.path().join("projections/totals/create.sqlite.sql")).unwrap();
    project.refused(&["create.sqlite.sql: it cannot be read"]);
    let project = Project::empty();
    project.write("projections", "a file");
    project.refused(&["projections: it cannot be read"]);
}
