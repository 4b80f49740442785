//! Progress on standard error: a bar on a terminal, a plain line now and then elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

const BAR_EVERY: Duration = Duration::from_millis(50);
const LINE_EVERY: Duration = Duration::from_secs(2);

pub(crate) struct Progress {
    label: String,
    total: Option<u64>,
    /// None where standard error is no terminal.
    bar: Option<ProgressBar>,
    last: Instant,
}

impl Progress {
    /// Without a total it is a spinner.
    pub(crate) fn new(label: impl Into<String>, total: Option<u64>) -> Progress {
        let label = label.into();
        let bar = std::io::stderr().is_terminal().then(|| bar(&label, total));
        Progress { label, total, bar, last: Instant::now() }
    }

    /// Shows how far it is, if it is time again; only then `message` is asked.
    pub(crate) fn set(&mut self, done: u64, message: impl FnOnce() -> String) {
        let every = if self.bar.is_some() { BAR_EVERY } else { LINE_EVERY };
        if self.last.elapsed() < every {
            return;
        }
        self.last = Instant::now();
        match &self.bar {
            Some(bar) => {
                bar.set_message(message());
                bar.set_position(done);
            }
            None => eprintln!("{}: {}{}", self.label, self.percent(done), message()),
        }
    }

    fn percent(&self, done: u64) -> String {
        match self.total {
            Some(total) if total > 0 => format!("{}%, ", done * 100 / total),
            _ => String::new(),
        }
    }
}

impl Drop for Progress {
    /// The bar goes away, so that what is said next stands alone.
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(label: &str, total: Option<u64>) -> ProgressBar {
    let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    let template = match total {
        Some(_) => "{prefix} {bar:20.cyan/dim} {percent:>3}% {wide_msg}",
        None => "{prefix} {spinner} {wide_msg}",
    };
    let style = ProgressStyle::with_template(template).expect("our own template is right");
    bar.set_style(style.progress_chars("━╸─"));
    bar.set_prefix(label.to_owned());
    bar
}

/// How many there are each second.
pub(crate) fn per_second(count: u64, elapsed: Duration) -> u64 {
    (count as f64 / elapsed.as_secs_f64().max(0.001)) as u64
}
