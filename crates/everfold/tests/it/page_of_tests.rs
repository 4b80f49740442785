//! docs/tests.md names tests: each of them is there.

use std::fs;
use std::path::{Path, PathBuf};

/// The file that a test is in, by the modules of its name.
fn file(root: &Path, modules: &[&str]) -> Option<PathBuf> {
    let (folder, modules) = match modules {
        ["rebuild", "tests", rest @ ..] => {
            ("crates/everfold/src/store/postgres/rebuild/tests", rest)
        }
        ["cli", rest @ ..] => ("crates/everfold-cli/tests/cli", rest),
        ["it", rest @ ..] => ("crates/everfold/tests/it", rest),
        ["fault", rest @ ..] => ("crates/everfold/tests/fault", rest),
        ["sqlite", rest @ ..] => ("crates/everfold/tests/sqlite", rest),
        _ => return None,
    };
    let path = root.join(folder).join(modules.join("/"));
    [path.with_extension("rs"), path.join("mod.rs")].into_iter().find(|path| path.is_file())
}

/// Whether a file has this function, marked as a test or listed for a macro that makes one for each store.
fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let function = [format!("async fn {name}("), format!("fn {name}(")];
    let Some(at) = lines.iter().position(|line| function.iter().any(|f| line.starts_with(f)))
    else {
        return false;
    };
    let is_marked = at > 0 && (lines[at - 1].contains("test(") || lines[at - 1] == "#[test]");
    is_marked || lines.contains(&format!("{name},").as_str())
}

#[test]
fn every_test_that_the_page_names_is_there() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let page = fs::read_to_string(root.join("docs/tests.md")).unwrap();
    let named: Vec<&str> =
        page.split('`').skip(1).step_by(2).filter(|n| n.contains("::")).collect();
    let named: Vec<&str> = named.into_iter().filter(|name| *name != "rebuild::tests").collect();
    assert!(named.len() > 50, "only {} names were found", named.len());
    let is_missing = |name: &&str| {
        let parts: Vec<&str> = name.split("::").collect();
        let (test, modules) = parts.split_last().unwrap();
        let text = file(root, modules).map(|path| fs::read_to_string(path).unwrap());
        !text.is_some_and(|text| has_test(&text, test))
    };
    let missing: Vec<&str> = named.into_iter().filter(is_missing).collect();
    assert_eq!(missing, [""; 0], "docs/tests.md names what is not there");
}

#[test]
fn function_that_is_no_test_is_told_from_one() {
    let text = "on_every_store! {\n    listed,\n}\nasync fn listed(f: Fixture) {}\n\
        #[tokio::test(flavor = \"multi_thread\")]\nasync fn marked() {}\n#[test]\nfn plain() {}\n\
        async fn helper() {}";
    assert!(["listed", "marked", "plain"].iter().all(|name| has_test(text, name)));
    assert!(!has_test(text, "helper") && !has_test(text, "nowhere"));
}
