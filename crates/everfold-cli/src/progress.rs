//! Progress on standard error: a bar on a terminal, a plain line now and then elsewhere.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

const BAR_EVERY: Duration = Duration::from_millis(50);
const LINE_EVERY: Duration = Duration::from_secs(2);

/// The bar that is on the terminal, for whoever has a line to say.
static ON_TERMINAL: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Says a line on standard error, above the bar if one is shown: nothing is hidden behind it.
pub(crate) fn tell(line: &str) {
    let shown = ON_TERMINAL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    match &*shown {
        Some(bar) => bar.suspend(|| eprintln!("{line}")),
        None => eprintln!("{line}"),
    }
}

fn set_on_terminal(bar: Option<ProgressBar>) {
    *ON_TERMINAL.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = bar;
}

/// A bar in percent that moves by itself, for work whose figures come now and then.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// None where standard error is no terminal.
    pub(crate) fn on_terminal() -> Option<Bar> {
        if !std::io::stderr().is_terminal() {
            return None;
        }
        let bar = ProgressBar::new(100);
        let template = "{spinner} {prefix} {bar:12.cyan/dim} {wide_msg}";
        let style = ProgressStyle::with_template(template).expect("our own template is right");
        bar.set_style(style.progress_chars("━╸─"));
        bar.enable_steady_tick(BAR_EVERY * 2);
        set_on_terminal(Some(bar.clone()));
        Some(Bar(bar))
    }

    pub(crate) fn set(&self, label: &str, percent: u64, message: &str) {
        self.0.set_prefix(label.to_owned());
        self.0.set_message(message.to_owned());
        self.0.set_position(percent);
    }
}

impl Drop for Bar {
    /// The bar goes away, so that what is said next stands alone.
    fn drop(&mut self) {
        set_on_terminal(None);
        self.0.finish_and_clear();
    }
}

/// A few lines that change in their place, for work that has more to show than a bar.
pub(crate) struct Live(ProgressBar);

impl Live {
    /// None where standard error is no terminal.
    pub(crate) fn on_terminal() -> Option<Live> {
        if !std::io::stderr().is_terminal() {
            return None;
        }
        let lines = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{msg}").expect("our own template is right");
        lines.set_style(style);
        set_on_terminal(Some(lines.clone()));
        Some(Live(lines))
    }

    pub(crate) fn set(&self, lines: &[String]) {
        self.0.set_message(lines.join("\n"));
        self.0.tick();
    }
}

impl Drop for Live {
    /// The lines go away, so that what is said next stands alone.
    fn drop(&mut self) {
        set_on_terminal(None);
        self.0.finish_and_clear();
    }
}

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
        set_on_terminal(bar.clone());
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
            set_on_terminal(None);
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
