//! Repeats, medians and tables.

use std::time::Duration;

/// Figures of both sides, in the order in which they were measured.
#[derive(Default)]
pub(crate) struct Comparison {
    raw: Vec<f64>,
    ours: Vec<f64>,
}

impl Comparison {
    pub(crate) fn push(&mut self, raw: f64, ours: f64) {
        self.raw.push(raw);
        self.ours.push(ours);
    }

    /// Each of ours over the raw figure measured just before it.
    fn ratios(&self) -> Vec<f64> {
        self.raw.iter().zip(&self.ours).map(|(raw, ours)| ours / raw).collect()
    }
}

/// Measures raw, ours, raw, ours …, so that a machine that slows down slows both.
pub(crate) async fn interleave(
    repeats: usize,
    mut raw: impl AsyncFnMut() -> anyhow::Result<f64>,
    mut ours: impl AsyncFnMut() -> anyhow::Result<f64>,
) -> anyhow::Result<Comparison> {
    let mut comparison = Comparison::default();
    for _ in 0..repeats {
        let raw = raw().await?;
        comparison.push(raw, ours().await?);
    }
    Ok(comparison)
}

/// Starts a table of events per second, raw and ours; [`compare`] adds the lines.
pub(crate) fn start_comparing(title: &str) {
    start_comparing_with(title, "raw", "everfold");
}

/// The same with other names for what is compared.
pub(crate) fn start_comparing_with(title: &str, limit: &str, ours: &str) {
    println!("## {title}\n");
    println!("| | {limit}, events/s | {ours}, events/s | ratio | min..max | target |");
    println!("|---|--:|--:|--:|--:|--:|");
}

pub(crate) fn compare(name: &str, comparison: &Comparison, target: Option<f64>) {
    let ratios = comparison.ratios();
    let (min, max) = ratios
        .iter()
        .fold((f64::INFINITY, 0.0_f64), |(min, max), &ratio| (min.min(ratio), max.max(ratio)));
    println!(
        "| {name} | {} | {} | {:.2} | {min:.2}..{max:.2} | {} |",
        grouped(median(&comparison.raw)),
        grouped(median(&comparison.ours)),
        median(&ratios),
        target.map_or(String::new(), |target| format!("{target:.2}")),
    );
}

/// Starts a table of how long one append takes; [`latency`] adds the lines.
pub(crate) fn start_latencies() {
    println!("\n| one append of one event | p50 | p99 |\n|---|--:|--:|");
}

pub(crate) fn latency(name: &str, mut latencies: Vec<Duration>) {
    latencies.sort_unstable();
    let at = |share: f64| {
        let index = (latencies.len().saturating_sub(1) as f64 * share).round() as usize;
        let milliseconds = latencies.get(index).map_or(f64::NAN, |one| one.as_secs_f64() * 1e3);
        format!("{milliseconds:.2} ms")
    };
    println!("| {name} | {} | {} |", at(0.5), at(0.99));
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_owned();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) {
        (sorted[middle - 1] + sorted[middle]) / 2.0
    } else {
        sorted[middle]
    }
}

/// "1 writer", "8 writers".
pub(crate) fn counted(number: usize, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", grouped(number as f64))
}

/// A figure without fraction, its digits in groups of three.
pub(crate) fn grouped(figure: f64) -> String {
    let digits = format!("{figure:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
