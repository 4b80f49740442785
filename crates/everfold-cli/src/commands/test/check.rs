//! Cases against the projections of the project and the tables that these make.

use std::path::Path;

use anyhow::bail;
use everfold::Projection;

use super::file::{Case, Expected};
use super::nearest::{hint, nearest};

/// A table with its columns.
pub(super) type Table = (String, Vec<String>);

/// Refuses a case of a projection that there is not.
pub(super) fn projections(cases: &[Case], projections: &[Projection]) -> anyhow::Result<()> {
    let names: Vec<&str> = projections.iter().map(Projection::name).collect();
    for case in cases {
        let name = case.projection.as_str();
        if !names.contains(&name) {
            let hint = hint(name, names.iter().copied());
            let (file, line) = (&case.file, case.projection_line);
            bail!("{file} line {line}: the project has no projection \"{name}\"{hint}");
        }
    }
    Ok(())
}

/// The columns to compare, as the store calls them. The error says which table or column there is not.
pub(super) fn columns(
    case: &Case,
    expected: &Expected,
    tables: &[Table],
) -> Result<(String, Vec<String>), String> {
    let place = |line: usize| format!("{} line {line}", case.file);
    let names = tables.iter().map(|(name, _)| name.as_str());
    let Some((table, known)) = tables.iter().find(|(name, _)| same(name, &expected.table)) else {
        let (projection, table) = (&case.projection, &expected.table);
        let (place, hint) = (place(expected.line), hint(table, names));
        return Err(format!("{place}: {projection} makes no table \"{table}\"{hint}"));
    };
    let column = |(name, line): &(String, usize)| {
        known.iter().find(|column| same(column, name)).cloned().ok_or_else(|| {
            let hint = hint(name, known.iter().map(String::as_str));
            format!("{}: {table} has no column \"{name}\"{hint}", place(*line))
        })
    };
    let columns: Result<Vec<String>, String> = expected.columns.iter().map(column).collect();
    Ok((table.clone(), columns?))
}

/// One store keeps the case of names, the other does not.
fn same(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other)
}

/// The cases that were asked for: by projection, by file, or by a part of their name. Each word must
/// mean one at least.
pub(super) fn select(cases: Vec<Case>, words: &[String]) -> anyhow::Result<Vec<Case>> {
    for word in words {
        if !cases.iter().any(|case| is_meant(case, word)) {
            let known = cases.iter().flat_map(|case| [case.projection.as_str(), &case.file]);
            let meant = match nearest(word, known) {
                Some(meant) => format!("did you mean {meant}?"),
                None => "name a projection, a file or a part of a case's name".to_owned(),
            };
            bail!("no case is meant by \"{word}\"; {meant}");
        }
    }
    let is_wanted = |case: &Case| words.is_empty() || words.iter().any(|word| is_meant(case, word));
    Ok(cases.into_iter().filter(is_wanted).collect())
}

fn is_meant(case: &Case, word: &str) -> bool {
    let file = Path::new(&case.file);
    let asked = Path::new(word.strip_prefix("./").unwrap_or(word));
    let is_file = file == asked
        || file.file_name() == Some(asked.as_os_str())
        || file.strip_prefix(asked).is_ok()
        || file.ends_with(asked) && asked.components().count() > 1;
    case.projection == word || is_file || case.name.contains(word)
}
