//! `everfold dead-letters`.

use anyhow::{anyhow, bail};
use clap::{Args, Subcommand};
use everfold::{DeadLetter, Position, ProjectionError, Retried, Store};
use serde::Serialize;

use super::listing::{self, Listing};
use crate::cli::Global;
use crate::confirm::confirm;
use crate::dry_run::{self, DryRun};
use crate::failure::Outcome;
use crate::output::{Output, count, shown};

/// A list as long as this may have been cut.
const LISTED_MAX: usize = 10_000;

/// Look at events that could not be applied, and treat them
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Later events of the same key wait behind a dead letter, so that nothing is applied on
top of a hole.

Examples:
  everfold dead-letters list
  everfold dead-letters retry cart_totals
  everfold dead-letters discard cart_totals 1042 --reason 'sent by a test'")]
pub(crate) enum DeadLetters {
    List(List),
    Retry(Retry),
    Discard(Discard),
}

/// List dead letters and the events that wait behind them
#[derive(Debug, Args)]
#[command(after_help = "\
With --json there is one line for each.

Examples:
  everfold dead-letters list
  everfold dead-letters list cart_totals --json | jq 'select(.behind == null)'")]
pub(crate) struct List {
    #[command(flatten)]
    of: Listing,
}

/// Apply dead letters again, then what waits behind them, in order
#[derive(Debug, Args)]
#[command(after_help = "\
Mend first what was wrong. Exits with 1 if one fails again. Projections written in
Rust are retried by a runner that has their code.

Examples:
  everfold dead-letters retry cart_totals            all of them
  everfold dead-letters retry cart_totals 1042 1077 --dry-run")]
pub(crate) struct Retry {
    /// The projection
    #[arg(value_name = "NAME")]
    name: String,
    /// Positions of dead letters [default: all]
    #[arg(value_name = "POSITION")]
    positions: Vec<u64>,
    #[command(flatten)]
    dry: DryRun,
    /// Print what became of them as JSON lines
    #[arg(long)]
    json: bool,
}

/// Give dead letters up for good, and apply what waits behind them
#[derive(Debug, Args)]
#[command(after_help = "\
The read model goes on without these events; the log keeps them, and the projection's
messages keep who gave them up and why.

Examples:
  everfold dead-letters discard cart_totals 1042 --dry-run
  everfold --yes dead-letters discard cart_totals 1042 --reason 'sent by a test'")]
pub(crate) struct Discard {
    /// The projection
    #[arg(value_name = "NAME")]
    name: String,
    /// Positions of dead letters
    #[arg(value_name = "POSITION", required = true)]
    positions: Vec<u64>,
    /// Why, for the record
    #[arg(long, value_name = "TEXT", default_value = "discarded by hand")]
    reason: String,
    #[command(flatten)]
    dry: DryRun,
    /// Print what became of them as JSON lines
    #[arg(long)]
    json: bool,
}

impl DeadLetters {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let store = global.target()?.open_existing().await?;
        let outcome = match self {
            DeadLetters::List(command) => command.run(&store).await,
            DeadLetters::Retry(command) => command.run(&store).await,
            DeadLetters::Discard(command) => command.run(global, &store).await,
        };
        store.close().await;
        outcome
    }
}

#[derive(Serialize)]
struct Listed<'a> {
    projection: &'a str,
    #[serde(flatten)]
    letter: &'a DeadLetter,
}

impl List {
    async fn run(self, store: &Store) -> anyhow::Result<Outcome> {
        let columns = ["PROJECTION", "POSITION", "STREAM", "TYPE", "KEY", "SINCE", "TRIES"];
        let mut list = listing::List::new(self.of.json, &columns);
        for projection in &super::names_or_all(store, self.of.name).await? {
            for letter in &store.dead_letters(projection).await? {
                let listed = Listed { projection, letter };
                list.add(&listed, cells(projection, letter), below(letter))?;
            }
        }
        list.end("no dead letters")
    }
}

fn cells(projection: &str, letter: &DeadLetter) -> Vec<String> {
    vec![
        projection.to_owned(),
        letter.position.to_string(),
        shown(letter.stream_id.as_str()),
        shown(&letter.event_type),
        shown(&letter.key),
        letter.created_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        letter.attempts.to_string(),
    ]
}

fn below(letter: &DeadLetter) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(behind) = letter.behind {
        lines.push(format!("waits behind {behind}"));
    }
    if let Some(error) = &letter.error {
        lines.push(shown(error));
    }
    if letter.retry_wanted {
        lines.push("a runner was asked to try it again".to_owned());
    }
    lines
}

/// What became of one.
#[derive(Serialize)]
struct Treated {
    position: Position,
    outcome: &'static str,
    /// How many events were applied, those behind it included.
    events: Option<u64>,
    /// The event that failed, which may be one of those behind it.
    failed_at: Option<Position>,
    error: Option<String>,
}

impl Treated {
    fn new(position: Position, retried: Retried, applied: &'static str) -> Treated {
        let treated =
            |outcome| Treated { position, outcome, events: None, failed_at: None, error: None };
        match retried {
            Retried::Applied { events } => Treated { events: Some(events), ..treated(applied) },
            Retried::FailedAgain { position, error } => {
                let (failed_at, error) = (Some(position), Some(error));
                Treated { failed_at, error, ..treated("failed") }
            }
            _ => treated("requested"),
        }
    }

    fn text(&self) -> String {
        let Treated { position, outcome, .. } = self;
        match (&self.error, self.failed_at, self.events) {
            (Some(error), Some(failed_at), _) if failed_at == *position => {
                format!("{position}: failed again: {}", shown(error))
            }
            (Some(error), Some(failed_at), _) => {
                format!("{position}: {failed_at} behind it failed: {}", shown(error))
            }
            // A discarded event is not among those that were applied.
            (_, _, Some(events)) => {
                let behind = events - u64::from(*outcome == "applied" && events > 0);
                format!("{position}: {outcome}, and {} behind it applied", count(behind, "event"))
            }
            _ => format!("{position}: a runner that has the projection's code will try it"),
        }
    }
}

/// Dead letters by position, as an operator is asked about them. What cannot be treated is told instead.
fn described(
    projection: &str,
    letters: &[DeadLetter],
    positions: &[u64],
) -> anyhow::Result<Vec<String>> {
    let mut parts = Vec::new();
    for position in positions.iter().copied().map(Position) {
        let Some(letter) = letters.iter().find(|letter| letter.position == position) else {
            if letters.len() >= LISTED_MAX {
                // It may be behind the end of the list.
                parts.push(position.to_string());
                continue;
            }
            bail!(
                "projection \"{projection}\" has no dead letter at position {position}; \
                 `everfold dead-letters list {projection}` lists those there are"
            );
        };
        if let Some(error) = waits_behind(letter) {
            return Err(error);
        }
        let held = letters.iter().filter(|letter| letter.behind == Some(position)).count();
        parts.push(format!(
            "{position}  {}  stream {}  {} behind it",
            shown(&letter.event_type),
            shown(letter.stream_id.as_str()),
            count(held as u64, "event")
        ));
    }
    Ok(parts)
}

impl Retry {
    async fn would(&self, store: &Store) -> anyhow::Result<Vec<String>> {
        let letters = store.dead_letters(&self.name).await?;
        let all = letters.iter().filter(|letter| letter.behind.is_none()).map(|l| l.position.0);
        let positions = match self.positions.is_empty() {
            true => all.collect(),
            false => self.positions.clone(),
        };
        let letters = described(&self.name, &letters, &positions)?;
        Ok(letters.into_iter().map(|letter| format!("try again {letter}")).collect())
    }

    async fn run(self, store: &Store) -> anyhow::Result<Outcome> {
        if self.dry.dry_run {
            return dry_run::tell(self.would(store).await?, self.json);
        }
        let mut treated = Vec::new();
        if self.positions.is_empty() {
            for (position, retried) in store.retry_dead_letters(&self.name).await? {
                treated.push(Treated::new(position, retried, "applied"));
            }
        }
        for position in self.positions.into_iter().map(Position) {
            let retried = match store.retry_dead_letter(&self.name, position).await {
                Err(error @ ProjectionError::NoDeadLetter { .. }) => {
                    // The list shows it too, so that it is worth saying why it is none.
                    let letters = store.dead_letters(&self.name).await?;
                    let held = letters.iter().find(|letter| letter.position == position);
                    return Err(held.and_then(waits_behind).unwrap_or_else(|| error.into()));
                }
                retried => retried?,
            };
            treated.push(Treated::new(position, retried, "applied"));
        }
        if treated.is_empty() && !self.json {
            let mut output = Output::new();
            output.line("no dead letters")?;
            output.flush()?;
        }
        tell(&treated, self.json)
    }
}

impl Discard {
    async fn run(self, global: &Global, store: &Store) -> anyhow::Result<Outcome> {
        let letters = store.dead_letters(&self.name).await?;
        let letters = described(&self.name, &letters, &self.positions)?;
        if self.dry.dry_run {
            let would = letters.into_iter().map(|letter| format!("give up {letter}"));
            return dry_run::tell(would.collect(), self.json);
        }
        let (events, listed) = (count(letters.len() as u64, "event"), letters.join("\n  "));
        let question = format!("  {listed}\nGive up {events} of {} for good?", self.name);
        if !confirm(global, &question)? {
            eprintln!("nothing was done");
            return Ok(Outcome::Done);
        }
        let mut treated = Vec::new();
        for position in self.positions.into_iter().map(Position) {
            let retried = store.discard_dead_letter(&self.name, position, &self.reason).await?;
            treated.push(Treated::new(position, retried, "discarded"));
        }
        tell(&treated, self.json)
    }
}

/// Why an event that waits behind a dead letter is not treated by itself.
fn waits_behind(letter: &DeadLetter) -> Option<anyhow::Error> {
    let (position, behind) = (letter.position, letter.behind?);
    Some(anyhow!(
        "the event at position {position} waits behind the dead letter at {behind}, and is applied \
         when that one is retried or discarded"
    ))
}

fn tell(treated: &[Treated], json: bool) -> anyhow::Result<Outcome> {
    let mut output = Output::new();
    for treated in treated {
        if json {
            output.json(treated)?;
        } else {
            output.line(treated.text())?;
        }
    }
    output.flush()?;
    let failed = treated.iter().any(|treated| treated.error.is_some());
    Ok(if failed { Outcome::Failed } else { Outcome::Done })
}
