//! What the demo found: three counts of the same events, compared.

use std::collections::HashSet;
use std::fmt;

use console::style;
use everfold::{Position, RecordedEvent, Version};
use indicatif::HumanCount;
use serde::Serialize;

use super::follower::Followed;
use super::writer::Counts;
use crate::progress::per_second;

/// Where an event stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) position: Position,
    pub(super) version: Version,
}

impl Place {
    pub(super) fn of(event: &RecordedEvent) -> Place {
        Place { position: event.position, version: event.version }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Report {
    store: String,
    writers: usize,
    seconds: f64,
    events_per_second: u64,
    /// Events whose append was acknowledged.
    appended: u64,
    /// Events that the log has.
    in_log: u64,
    /// Appends that expected an old version and were refused.
    conflicts_refused: u64,
    /// Appends that were stored though the stream was not as expected.
    conflicts_accepted: u64,
    /// Events that the follower saw.
    followed: u64,
    /// Events of the log that it did not see.
    missed: u64,
    /// Events that it saw again.
    doubled: u64,
    out_of_order: u64,
    /// Events whose version was not the next of their stream.
    holes: u64,
    /// Events that it saw and the log does not have.
    vanished: u64,
}

impl Report {
    pub(super) fn compare(
        store: String,
        writers: usize,
        wrote: Counts,
        followed: &Followed,
        log: &[Place],
    ) -> Report {
        let in_log: HashSet<_> = log.iter().collect();
        let seen: HashSet<_> = followed.places.iter().collect();
        Report {
            store,
            writers,
            seconds: wrote.elapsed.as_secs_f64(),
            events_per_second: per_second(wrote.stored, wrote.elapsed),
            appended: wrote.stored,
            in_log: log.len() as u64,
            conflicts_refused: wrote.conflicts,
            conflicts_accepted: wrote.accepted_stale,
            followed: followed.places.len() as u64,
            missed: in_log.difference(&seen).count() as u64,
            doubled: (followed.places.len() - seen.len()) as u64,
            out_of_order: followed.out_of_order,
            holes: followed.holes,
            vanished: seen.difference(&in_log).count() as u64,
        }
    }

    /// Whether everything is as it must be.
    pub(super) fn is_right(&self) -> bool {
        let wrong = [
            self.appended.abs_diff(self.in_log),
            self.conflicts_accepted,
            self.missed,
            self.doubled,
            self.out_of_order,
            self.holes,
            self.vanished,
        ];
        wrong == [0; 7]
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [appended, rate, in_log, followed] =
            [self.appended, self.events_per_second, self.in_log, self.followed].map(HumanCount);
        writeln!(f, "{}\n", self.store)?;
        writeln!(
            f,
            "  appended   {appended} events by {} writers in {:.1} s, {rate} events/s",
            self.writers, self.seconds
        )?;
        writeln!(
            f,
            "  conflicts  {} appends expected an old version and were refused, {} let through",
            HumanCount(self.conflicts_refused),
            zero(self.conflicts_accepted)
        )?;
        writeln!(
            f,
            "  followed   {followed} events while they were written:\n             \
             missed {}, doubled {}, out of order {}, holes {}",
            zero(self.missed),
            zero(self.doubled),
            zero(self.out_of_order),
            zero(self.holes)
        )?;
        writeln!(f, "  read back  {in_log} events, vanished {}\n", zero(self.vanished))?;
        if self.is_right() {
            write!(f, "{}", style("everything adds up").green())
        } else {
            let hint = "something is wrong: please report this with the numbers above";
            write!(f, "{}", style(hint).red().bold())
        }
    }
}

/// A count that should be 0, so that another number stands out.
fn zero(count: u64) -> console::StyledObject<HumanCount> {
    let count_of = style(HumanCount(count));
    if count == 0 { count_of.green() } else { count_of.red().bold() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn place(position: u64) -> Place {
        Place { position: Position(position), version: Version(position) }
    }

    fn report(stored: u64, seen: &[u64], log: &[u64]) -> Report {
        let wrote = Counts { stored, elapsed: Duration::from_secs(1), ..Counts::default() };
        let places = seen.iter().copied().map(place).collect();
        let followed = Followed { places, ..Followed::default() };
        let log: Vec<_> = log.iter().copied().map(place).collect();
        Report::compare("sqlite:a.db".to_owned(), 8, wrote, &followed, &log)
    }

    #[test]
    fn equal_counts_are_right() {
        let report = report(3, &[1, 2, 4], &[1, 2, 4]);
        assert!(report.is_right());
        assert_eq!((report.appended, report.in_log, report.followed), (3, 3, 3));
    }

    #[test]
    fn each_difference_is_counted_and_makes_it_wrong() {
        let wrong = report(3, &[1, 4], &[1, 2, 4]);
        assert_eq!((wrong.missed, wrong.doubled, wrong.vanished), (1, 0, 0));
        assert!(!wrong.is_right());
        let wrong = report(2, &[1, 2, 2], &[1, 2]);
        assert_eq!((wrong.missed, wrong.doubled, wrong.vanished), (0, 1, 0));
        assert!(!wrong.is_right());
        let wrong = report(2, &[1, 2, 3], &[1, 2]);
        assert_eq!((wrong.missed, wrong.doubled, wrong.vanished), (0, 0, 1));
        assert!(!wrong.is_right());
        assert!(!report(3, &[1, 2], &[1, 2]).is_right(), "an acknowledged event is not in the log");
    }

    #[test]
    fn report_fits_eighty_columns() {
        let report = report(1_000_000, &[1], &[1]);
        for line in report.to_string().lines() {
            let width = console::measure_text_width(line);
            assert!(width <= 80, "{width}: {line}");
        }
    }
}
