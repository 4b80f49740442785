//! What is shown while the shop is open: a few lines that change on a terminal, a plain line now
//! and then elsewhere.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use console::style;
use everfold::{RebuildProgress, Store};
use indicatif::HumanCount;

use super::read_models::ReadModels;
use super::shop::Till;
use super::{BESTSELLERS, CART_TOTALS};
use crate::age;
use crate::commands::rebuild;
use crate::progress::{Live, tell};

const LOOK_EVERY: Duration = Duration::from_millis(100);
const LINE_EVERY: Duration = Duration::from_secs(2);
/// The rate is taken over about this time.
const RATE_OVER: Duration = Duration::from_secs(2);
const BAR: usize = 20;

pub(super) struct Board {
    store: Store,
    pub(super) read_models: ReadModels,
    till: Arc<Till>,
    /// None where standard error is no terminal.
    live: Option<Live>,
    counts: VecDeque<(Instant, u64)>,
    last_line: Instant,
}

/// What the read models show at one moment.
struct Seen {
    version: u32,
    carts: u64,
    items: u64,
    bestsellers: Vec<(String, u64)>,
}

impl Board {
    pub(super) fn new(store: &Store, read_models: ReadModels, till: &Arc<Till>) -> Board {
        Board {
            store: store.clone(),
            read_models,
            till: Arc::clone(till),
            live: Live::on_terminal(),
            counts: VecDeque::new(),
            last_line: Instant::now(),
        }
    }

    /// Shows what goes on for so long.
    pub(super) async fn watch(&mut self, time: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.look(None).await?;
        }
        Ok(())
    }

    /// Shows what goes on for a moment, with a rebuild if one is under way.
    pub(super) async fn look(&mut self, rebuild: Option<&RebuildProgress>) -> anyhow::Result<()> {
        tokio::time::sleep(LOOK_EVERY).await;
        let rate = self.rate();
        if self.live.is_none() && self.last_line.elapsed() < LINE_EVERY {
            return Ok(());
        }
        let seen = self.seen().await?;
        match &self.live {
            Some(live) => live.set(&self.block(rate, &seen, rebuild)),
            None => {
                self.last_line = Instant::now();
                tell(&self.line(rate, &seen, rebuild));
            }
        }
        Ok(())
    }

    /// What changes goes away, so that what is said next stands alone.
    pub(super) fn end(&mut self) {
        self.live = None;
    }

    /// Events in a second, lately.
    fn rate(&mut self) -> u64 {
        let now = Instant::now();
        self.counts.push_back((now, self.till.stored()));
        while self.counts.len() > 2 && now.duration_since(self.counts[1].0) > RATE_OVER {
            self.counts.pop_front();
        }
        let (Some(first), Some(last)) = (self.counts.front(), self.counts.back()) else { return 0 };
        crate::progress::per_second(last.1 - first.1, last.0 - first.0)
    }

    async fn seen(&self) -> anyhow::Result<Seen> {
        let version = self.store.projection(CART_TOTALS).await?.version;
        let totals = self.read_models.rows(&["count(*)", "sum(items)"], CART_TOTALS, "").await?;
        let total = |column: usize| totals[0][column].parse().unwrap_or(0);
        let best = "ORDER BY in_carts DESC LIMIT 3";
        let rows = self.read_models.rows(&["sku", "in_carts"], BESTSELLERS, best).await?;
        let pair = |row: Vec<String>| (row[0].clone(), row[1].parse().unwrap_or(0));
        let bestsellers = rows.into_iter().map(pair).collect();
        Ok(Seen { version, carts: total(0), items: total(1), bestsellers })
    }

    fn block(&self, rate: u64, seen: &Seen, rebuild: Option<&RebuildProgress>) -> Vec<String> {
        let label = |text: &str| style(format!("{text:<12}")).for_stderr().cyan().to_string();
        let [events, rate, carts, items] =
            [self.till.stored(), rate, seen.carts, seen.items].map(HumanCount);
        let longest = age::shown(self.till.longest_wait().as_secs_f64());
        let best: Vec<String> =
            seen.bestsellers.iter().map(|(sku, n)| format!("{sku} {}", HumanCount(*n))).collect();
        let mut lines = vec![
            String::new(),
            format!("{} {events} events, {rate}/s, longest wait {longest}", label("shop")),
            format!(
                "{} version {}: {carts} carts with {items} items",
                label(CART_TOTALS),
                seen.version
            ),
            format!("{} {}", label(BESTSELLERS), best.join(", ")),
        ];
        if let Some(progress) = rebuild {
            let percent = rebuild::percent(progress) as usize;
            let done = percent * BAR / 100;
            let bar = style("━".repeat(done)).for_stderr().green();
            let left = style("─".repeat(BAR - done)).for_stderr().dim();
            let worker = match progress.worker {
                Some(_) => progress.phase.to_string().replace('-', " "),
                None => "nobody works on it".to_owned(),
            };
            lines.push(format!("{} {bar}{left} {percent:>3}% {worker}", label("rebuild")));
        }
        lines
    }

    fn line(&self, rate: u64, seen: &Seen, rebuild: Option<&RebuildProgress>) -> String {
        let [events, rate, items] = [self.till.stored(), rate, seen.items].map(HumanCount);
        let mut line = format!("shop     {events} events, {rate}/s; {items} items in carts");
        if let Some(progress) = rebuild {
            line.push_str(&format!("; rebuild {}%", rebuild::percent(progress)));
        }
        line
    }
}
