//! What both stores find, in the same words.

use std::time::Duration;

use jiff::Timestamp;

use super::{Finding, Severity};

/// An append or a lock that is held for so long is worth a word.
const HELD_SECONDS: f64 = 5.0;

/// Clocks that are kept by NTP do not step by more.
const AHEAD_SECONDS: f64 = 5.0;

/// How serious it is that something has been held for so long; `None`: that is usual.
#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "PostgreSQL alone needs it"))]
pub(crate) fn held(seconds: Option<f64>, problem: Duration) -> Option<(f64, Severity)> {
    let seconds = seconds?;
    if seconds > problem.as_secs_f64() {
        return Some((seconds, Severity::Problem));
    }
    (seconds > HELD_SECONDS).then_some((seconds, Severity::Warning))
}

/// `2026-01-02T03:04:05Z (12 s)`.
pub(crate) fn since(time: Timestamp, seconds: f64) -> String {
    format!("{} ({seconds:.0} s)", time.strftime("%Y-%m-%dT%H:%M:%SZ"))
}

/// An event of the future: the clock has gone back since, or it came so with an import.
pub(crate) fn newest_event(position: i64, recorded: Timestamp, now: Timestamp) -> Option<Finding> {
    let ahead = recorded.duration_since(now).as_secs_f64();
    (ahead > AHEAD_SECONDS).then(|| {
        let message = format!(
            "the newest event, at position {position}, was recorded at {}, {ahead:.0} s from now: the \
             clock was set back, or the event was imported so",
            recorded.strftime("%Y-%m-%dT%H:%M:%SZ")
        );
        let hint = "`timedatectl` on the database's machine; order goes by position, so nothing is \
            lost, but ages of lag are too small until then";
        Finding::warning("clock", message, hint)
    })
}

/// A position of an inline projection that the log has not reached, and the table that knows it.
#[derive(Debug)]
pub(crate) struct LostPosition {
    pub(crate) projection: String,
    pub(crate) place: String,
    pub(crate) position: i64,
}

/// Whether the log is shorter than it was. `gap` positions were handed out behind its end, if that is
/// more than usual.
pub(crate) fn log_findings(last: i64, lost: &[LostPosition], gap: i64) -> Vec<Finding> {
    let mut findings: Vec<Finding> = lost.iter().map(|lost| lost_position(last, lost)).collect();
    if gap > 0 {
        findings.push(Finding::warning(
            "log",
            format!(
                "it ends at position {last}, and {gap} more were handed out: a large append or import \
                 was rolled back, or the events come from an older backup than the rest"
            ),
            "after a restore: `everfold status`, and `everfold verify NAME --all` for each read model",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok("log", "nothing knows of events that it does not have"));
    }
    findings
}

fn lost_position(last: i64, lost: &LostPosition) -> Finding {
    let LostPosition { projection, place, position } = lost;
    let message = format!(
        "it ends at position {last}, and {place} knows of position {position} of {projection}: events \
         were lost, by a restore in part or a failover, and the read model may hold some of them"
    );
    let hint =
        format!("`everfold rebuild {projection}`; `everfold verify {projection} --all` shows rows");
    Finding::problem("log", message, hint)
}

/// A table of a read model that readers see.
#[derive(Debug)]
pub(crate) struct ReadModelTable {
    pub(crate) projection: String,
    pub(crate) table: String,
    pub(crate) exists: bool,
    /// Whether a view shows it.
    pub(crate) is_shown: bool,
    /// Whether a primary key or a unique index keeps a row from being there twice.
    pub(crate) has_key: bool,
}

/// Tables that are gone, that nobody can read, or in which rows can be doubled.
pub(crate) fn read_model_findings(tables: &[ReadModelTable]) -> Vec<Finding> {
    let found: Vec<Finding> = tables.iter().filter_map(read_model_finding).collect();
    match found.is_empty() {
        true => {
            let message = match tables.len() {
                0 => "none that readers see".to_owned(),
                1 => "1 table, there and with a key".to_owned(),
                count => format!("{count} tables, all there and with a key"),
            };
            vec![Finding::ok("read models", message)]
        }
        false => found,
    }
}

fn read_model_finding(table: &ReadModelTable) -> Option<Finding> {
    let ReadModelTable { projection, table, exists, is_shown, has_key } = table;
    let rebuild = format!("`everfold rebuild {projection}`");
    if !exists {
        let message = format!("table {table} of {projection} is gone: dropped, or not restored");
        return Some(Finding::problem("read models", message, rebuild));
    }
    if !is_shown {
        let message = format!("no view shows table {table} of {projection}: it was dropped");
        return Some(Finding::problem("read models", message, rebuild));
    }
    if !has_key {
        let message = format!(
            "table {table} of {projection} has neither primary key nor unique index: nothing there \
             refuses a row that is doubled"
        );
        let hint = format!(
            "`everfold verify {projection} --all` finds rows that are doubled; a PRIMARY KEY in \
             create.sql, as a new version, refuses them"
        );
        return Some(Finding::warning("read models", message, hint));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_becomes_a_warning_and_then_a_problem() {
        let minute = Duration::from_secs(60);
        assert_eq!(held(None, minute), None);
        assert_eq!(held(Some(4.0), minute), None);
        assert_eq!(held(Some(6.0), minute), Some((6.0, Severity::Warning)));
        assert_eq!(held(Some(61.0), minute), Some((61.0, Severity::Problem)));
        assert_eq!(held(Some(0.1), Duration::ZERO), Some((0.1, Severity::Problem)));
    }

    #[test]
    fn log_that_is_shorter_than_it_was_is_told_by_what_knows_more() {
        assert_eq!(log_findings(6, &[], 0)[0].severity, Severity::Ok);
        assert_eq!(log_findings(6, &[], 2_000)[0].severity, Severity::Warning);
        let (projection, place) = ("sums".to_owned(), "everfold.skips".to_owned());
        let finding = &log_findings(6, &[LostPosition { projection, place, position: 10 }], 0)[0];
        assert_eq!(finding.severity, Severity::Problem);
        assert!(finding.message.contains("everfold.skips knows of position 10 of sums"));
    }
}
