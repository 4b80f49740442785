//! What came of the demo.

use std::fmt;
use std::time::Duration;

use console::style;
use everfold::RebuildProgress;
use indicatif::HumanCount;
use serde::Serialize;

use super::check::Faults;
use crate::age;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Report {
    pub(super) store: String,
    pub(super) folder: String,
    pub(super) seconds: f64,
    /// Events that the log has.
    pub(super) events: u64,
    /// Those of them that were there when the shop opened.
    pub(super) filled: u64,
    pub(super) writers: usize,
    /// Appended by the writers, each second that the shop was open.
    pub(super) events_per_second: u64,
    pub(super) appends: u64,
    pub(super) conflicts_refused: u64,
    pub(super) longest_wait_ms: f64,
    /// 99 of 100 appends took no longer.
    pub(super) wait_p99_ms: f64,
    pub(super) rebuild: Rebuilt,
    /// Rows that were compared with the log.
    pub(super) rows_checked: u64,
    #[serde(flatten)]
    pub(super) faults: Faults,
    /// Commands to go on with.
    pub(super) next: Vec<String>,
    #[serde(skip)]
    pub(super) note: Option<String>,
}

/// How the rebuild under load went.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Rebuilt {
    pub(super) version: u32,
    pub(super) events: u64,
    pub(super) seconds: f64,
    /// Rebuilders that were killed on the way.
    pub(super) killed: u32,
    /// Events that were applied when the first was killed, and when another went on.
    pub(super) killed_at: Option<u64>,
    pub(super) went_on_at: Option<u64>,
    /// How long the switch held appends up.
    pub(super) appends_held_ms: Option<f64>,
}

impl Rebuilt {
    pub(super) fn new(
        progress: &RebuildProgress,
        killed_at: Option<u64>,
        went_on_at: Option<u64>,
    ) -> Rebuilt {
        let took = progress.switched_at.map(|at| at.duration_since(progress.requested_at));
        Rebuilt {
            version: progress.version,
            events: progress.events_done,
            seconds: took.map(|took| took.as_secs_f64()).unwrap_or_default(),
            killed: u32::from(killed_at.is_some()),
            killed_at,
            went_on_at,
            appends_held_ms: progress.appends_held.map(milliseconds),
        }
    }
}

pub(super) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

/// How long most of them took, of waits that are sorted.
pub(super) fn percentile(waits: &[Duration], percent: usize) -> Duration {
    let last = waits.len().saturating_sub(1);
    waits.get((waits.len() * percent / 100).min(last)).copied().unwrap_or_default()
}

impl Report {
    /// Whether everything is as it must be.
    pub(super) fn is_right(&self) -> bool {
        self.faults.is_none()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = |ms: f64| age::shown(ms / 1_000.0);
        let [events, filled, written, rate] =
            [self.events, self.filled, self.events - self.filled, self.events_per_second]
                .map(HumanCount);
        writeln!(f, "{}", style(format!("a shop on {}", self.store)).bold())?;
        writeln!(f, "  events     {events}: {filled} to begin with, {written} while it was open")?;
        writeln!(f, "  rate       {rate}/s by {} writers", self.writers)?;
        writeln!(
            f,
            "  appends    {}, longest wait {}, 99% within {}",
            HumanCount(self.appends),
            milliseconds(self.longest_wait_ms),
            milliseconds(self.wait_p99_ms)
        )?;
        let conflicts = HumanCount(self.conflicts_refused);
        writeln!(f, "  conflicts  {conflicts} appends expected an old version and were refused")?;
        let Rebuilt { events, seconds, killed, .. } = &self.rebuild;
        let held = match self.rebuild.appends_held_ms {
            Some(held) => format!(", appends held up for {}", milliseconds(held)),
            None => String::new(),
        };
        writeln!(
            f,
            "  rebuild    {} events in {seconds:.1} s, killed {killed}x{held}",
            HumanCount(*events)
        )?;
        let Faults { lost, doubled, reordered, invented, rows_that_differ } = self.faults;
        let checked = HumanCount(self.rows_checked);
        write!(
            f,
            "  checked    {checked} rows against the log, {} differ",
            zero(rows_that_differ)
        )?;
        if invented > 0 {
            write!(f, ", {} events unheard of", zero(invented))?;
        }
        let (lost, doubled, reordered) = (zero(lost), zero(doubled), zero(reordered));
        writeln!(f, "\n\n  lost {lost}, doubled {doubled}, reordered {reordered}\n")?;
        match self.is_right() {
            true => writeln!(f, "{}", style("everything adds up").green())?,
            false => {
                let hint = "something is wrong: please report this with the numbers above";
                writeln!(f, "{}", style(hint).red().bold())?;
            }
        }
        write!(f, "\nthe shop is yours, in {}; try next:", self.folder)?;
        self.next.iter().try_for_each(|command| write!(f, "\n  {command}"))?;
        match &self.note {
            Some(note) => write!(f, "\n{note}"),
            None => Ok(()),
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
    use super::*;

    fn report(faults: Faults) -> Report {
        Report {
            store: "sqlite:everfold-demo/everfold.db".to_owned(),
            folder: "everfold-demo".to_owned(),
            seconds: 59.9,
            events: 1_234_567,
            filled: 1_000_000,
            writers: 8,
            events_per_second: 12_345,
            appends: 1_234_567,
            conflicts_refused: 123_456,
            longest_wait_ms: 119_000.0,
            wait_p99_ms: 119_000.0,
            rebuild: Rebuilt {
                version: 2,
                events: 1_234_567,
                seconds: 123.4,
                killed: 1,
                killed_at: Some(1),
                went_on_at: Some(1),
                appends_held_ms: Some(100.0),
            },
            rows_checked: 123_456,
            faults,
            next: Vec::new(),
            note: None,
        }
    }

    #[test]
    fn any_fault_is_told() {
        let right = report(Faults::default());
        assert!(right.is_right());
        assert!(right.to_string().contains("lost 0, doubled 0, reordered 0"), "{right}");
        let each: [fn(&mut Faults); 5] = [
            |f| f.lost = 888,
            |f| f.doubled = 888,
            |f| f.reordered = 888,
            |f| f.invented = 888,
            |f| f.rows_that_differ = 888,
        ];
        for set in each {
            let mut faults = Faults::default();
            set(&mut faults);
            let wrong = report(faults);
            assert!(!wrong.is_right(), "{wrong}");
            let text = wrong.to_string();
            assert!(text.contains("888") && text.contains("something is wrong"), "{text}");
        }
    }

    #[test]
    fn report_fits_eighty_columns() {
        for line in report(Faults { invented: 1_000_000, ..Faults::default() }).to_string().lines()
        {
            let width = console::measure_text_width(line);
            assert!(width <= 80, "{width}: {line}");
        }
    }

    #[test]
    fn percentile_is_within_the_waits() {
        let waits: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(percentile(&waits, 99), Duration::from_millis(100));
        assert_eq!(percentile(&waits[..1], 99), Duration::from_millis(1));
        assert_eq!(percentile(&[], 99), Duration::ZERO);
    }
}
