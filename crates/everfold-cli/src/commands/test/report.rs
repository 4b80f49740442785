//! What came of the cases: lines for people as they come, or one JSON value at the end.

use console::{StyledObject, style};
use everfold::testing::RowDifference;
use serde::Serialize;
use serde_json::Value;

use super::file::Case;
use super::run::Verdict;
use crate::output::{Output, shown};
use crate::table::Table;

/// Most rows that are shown of a case; JSON has all of them.
const ROWS_MAX: usize = 10;
/// Longest text of the columns in which a row is as expected.
const KEY_MAX: usize = 40;
/// Below the word that begins a case's line.
const INDENT: &str = "          ";

pub(super) struct Report {
    output: Output,
    /// The file of the case before.
    file: String,
    json: bool,
    all: All,
}

#[derive(Default, Serialize)]
struct All {
    store: &'static str,
    passed: usize,
    failed: usize,
    not_run: usize,
    cases: Vec<Told>,
}

#[derive(Serialize)]
struct Told {
    file: String,
    line: usize,
    name: String,
    projection: String,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    variants: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    variant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rows: Vec<RowDifference>,
}

impl Report {
    pub(super) fn new(store: &'static str, json: bool) -> Report {
        let all = All { store, ..All::default() };
        Report { output: Output::new(), file: String::new(), json, all }
    }

    /// Tells about a case that has ended.
    pub(super) fn tell(&mut self, case: &Case, verdict: Verdict) -> anyhow::Result<()> {
        if !self.json {
            self.print(case, &verdict)?;
        }
        self.all.add(case, verdict);
        Ok(())
    }

    fn print(&mut self, case: &Case, verdict: &Verdict) -> anyhow::Result<()> {
        if self.file != case.file {
            let gap = if self.file.is_empty() { "" } else { "\n" };
            self.output.line(format!("{gap}{}", shown(&case.file)))?;
            self.file.clone_from(&case.file);
        }
        let (word, below) = described(case, verdict);
        let ways = match verdict {
            Verdict::Passed { variants } => style(format!("  {variants} ways")).dim().to_string(),
            _ => String::new(),
        };
        self.output.line(format!("  {word}  {}{ways}", shown(&case.name)))?;
        for line in below {
            self.output.line(format!("{INDENT}{line}"))?;
        }
        self.output.flush()
    }

    /// Tells the sum of it all.
    pub(super) fn end(mut self) -> anyhow::Result<(usize, usize)> {
        let All { passed, failed, not_run, .. } = self.all;
        if self.json {
            self.output.json(&self.all)?;
        } else {
            let mut sum = format!("\n{passed} passed, {failed} failed");
            if not_run > 0 {
                sum.push_str(&format!(", {not_run} could not be run"));
            }
            self.output.line(sum)?;
        }
        self.output.flush()?;
        Ok((failed, not_run))
    }
}

impl All {
    fn add(&mut self, case: &Case, verdict: Verdict) {
        let mut told = Told {
            file: case.file.clone(),
            line: case.line,
            name: case.name.clone(),
            projection: case.projection.clone(),
            outcome: "passed",
            variants: None,
            variant: None,
            rule: None,
            message: None,
            rows: Vec::new(),
        };
        match verdict {
            Verdict::Passed { variants } => {
                self.passed += 1;
                told.variants = Some(variants);
            }
            Verdict::Failed { variant, rule, message, rows } => {
                self.failed += 1;
                told.outcome = "failed";
                (told.variant, told.rule, told.message) = (Some(variant), rule, Some(message));
                told.rows = rows;
            }
            Verdict::NotRun { message } => {
                self.not_run += 1;
                told.outcome = "not-run";
                told.message = Some(message);
            }
            Verdict::Stopped => return,
        }
        self.cases.push(told);
    }
}

/// The word for a verdict, and the lines below it.
fn described(case: &Case, verdict: &Verdict) -> (StyledObject<&'static str>, Vec<String>) {
    match verdict {
        Verdict::Passed { .. } => (style("ok    ").green(), Vec::new()),
        Verdict::Failed { variant, rule, message, rows } => {
            let mut lines = vec![format!("line {}, {}: {variant}", case.line, case.projection)];
            if rows.is_empty() {
                lines.extend(message.lines().map(shown));
            } else {
                lines.extend(table(rows));
            }
            if let Some(rule) = rule {
                lines.push("it is as expected with the events as given;".to_owned());
                lines.push((*rule).to_owned());
            }
            (style("FAILED").red().bold(), lines)
        }
        Verdict::NotRun { message } => {
            (style("ERROR ").red().bold(), message.lines().map(shown).collect())
        }
        Verdict::Stopped => (style("ended ").yellow(), Vec::new()),
    }
}

/// One line for each row: what tells it from others, and what is not as it should be.
fn table(rows: &[RowDifference]) -> Vec<String> {
    let mut table = Table::new(&["TABLE", "ROW", "EXPECTED", "FOUND"]);
    for row in rows.iter().take(ROWS_MAX) {
        let (key, expected, found) = sides(row);
        table.row(vec![shown(&row.table), key, expected, found], Vec::new());
    }
    let mut lines: Vec<String> = table.to_string().lines().map(str::to_owned).collect();
    if rows.len() > ROWS_MAX {
        lines.push(format!("and {} more", rows.len() - ROWS_MAX));
    }
    lines
}

/// The columns in which both agree, and the others of each side.
fn sides(row: &RowDifference) -> (String, String, String) {
    let side = |values: &Option<Vec<Value>>, wanted: &dyn Fn(&str) -> bool| {
        let Some(values) = values else { return "no such row".to_owned() };
        let cells = row.columns.iter().zip(values).filter(|(name, _)| wanted(name));
        cells.map(|(name, value)| cell(name, value)).collect::<Vec<_>>().join(", ")
    };
    if row.expected.is_none() || row.found.is_none() {
        return (String::new(), side(&row.expected, &|_| true), side(&row.found, &|_| true));
    }
    let apart = row.columns_that_differ();
    let differs = |name: &str| apart.contains(&name);
    (
        short(side(&row.expected, &|name| !differs(name))),
        side(&row.expected, &differs),
        side(&row.found, &differs),
    )
}

/// What tells a row from others stands at its begin, as a rule; what differs is shown whole.
fn short(text: String) -> String {
    match text.char_indices().nth(KEY_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// A value as its kind shows: text in quotes, so that "2" is not taken for 2.
fn cell(name: &str, value: &Value) -> String {
    match value {
        Value::Null => format!("{} NULL", shown(name)),
        value => shown(&format!("{name} {value}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_without_a_counterpart_is_shown_whole() {
        assert_eq!(cell("n", &Value::Null), "n NULL");
        assert_eq!(cell("n", &"2".into()), "n \"2\"");
        assert_eq!(cell("n", &2.into()), "n 2");
    }
}
