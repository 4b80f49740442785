//! The defaults that `docs/reference/settings.md` names, against those there are.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use everfold::{Limits, RebuildOptions, RunnerOptions, StoreOptions};

const PAGE: &str = include_str!("../../../../../docs/reference/settings.md");

#[test]
fn defaults_on_the_page_are_those_of_the_library() {
    let compared = compare("## StoreOptions", 1, &StoreOptions::default())
        + compare("## RunnerOptions", 1, &RunnerOptions::default())
        + compare("## RebuildOptions", 2, &RebuildOptions::default())
        + compare("## Limits", 1, &Limits::default());
    assert!(compared >= 40, "only {compared} defaults could be compared");
}

/// Compares the tables of a section; the default stands in this column. How many there were.
fn compare(section: &str, column: usize, options: &impl Debug) -> usize {
    let debug = format!("{options:#?}");
    let found = fields(&debug);
    let text = PAGE.split(section).nth(1).unwrap().split("\n## ").next().unwrap();
    let mut compared = 0;
    for row in text.lines().filter(|line| line.starts_with("| ") && line.contains('`')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let names: Vec<&str> = cells[0].split('`').skip(1).step_by(2).collect();
        for (name, cell) in names.iter().zip(cells[column].split(", ")) {
            let (Some(said), Some(found)) = (value(cell), found.get(*name)) else { continue };
            // One that depends on the kind of store, or on another option, has no value here.
            if said == *found || (*found != "None" && !found.contains('(')) {
                assert_eq!(said, *found, "settings.md, {section}: {name}");
                compared += 1;
            }
        }
    }
    compared
}

/// The plain fields of what `{:#?}` prints.
fn fields(debug: &str) -> BTreeMap<&str, &str> {
    let lines = debug.lines().filter_map(|line| line.strip_prefix("    "));
    let fields = lines.filter_map(|line| line.strip_suffix(',')?.split_once(": "));
    fields.filter(|(name, _)| !name.starts_with(' ')).collect()
}

/// What a cell of the page means, as `{:?}` prints it; `None` if it is told in words.
fn value(cell: &str) -> Option<String> {
    let cell = cell.split([';', ':']).next()?.trim();
    if ["true", "false"].contains(&cell) {
        return Some(cell.to_owned());
    }
    if ["never", "no limit", "never wait for others", "whatever differs"].contains(&cell) {
        return Some("None".to_owned());
    }
    let mut words = cell.split(' ');
    let number: u64 = words.next()?.replace(',', "").parse().ok()?;
    let time = |seconds| Some(format!("{:?}", Duration::from_secs(seconds)));
    match words.next() {
        Some("ms") => Some(format!("{:?}", Duration::from_millis(number))),
        Some("s") => time(number),
        Some("days") => time(number * 24 * 60 * 60),
        Some("KiB") => Some((number << 10).to_string()),
        Some("MiB") => Some((number << 20).to_string()),
        _ => Some(number.to_string()),
    }
}
