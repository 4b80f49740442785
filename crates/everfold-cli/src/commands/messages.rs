//! `everfold messages`.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use everfold::{MessageQuery, ProjectionMessage, Store};

use crate::cli::Global;
use crate::failure::Outcome;
use crate::output::{Output, shown};
use crate::table::Table;

const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// Most messages that are read at once.
const LIMIT_MAX: u64 = 10_000;
/// So many of the newest are looked at again while following: those that were written at the same
/// time may become visible in another order than that of their numbers.
const FOLLOW_BACK: usize = 1_000;

/// Show what happened to projections, and who did it
#[derive(Debug, Args)]
#[command(after_help = "\
Registrations, changes of status and settings, failures, dead letters and what became
of them, events that were left out, and skips that were settled. The newest come last.
Runners delete messages after two weeks.

Examples:
  everfold messages
  everfold messages cart_totals --kind failure --kind dead-letter
  everfold messages --follow
  everfold messages --limit 1000 --json | jq -r 'select(.kind == \"status\") | .message'")]
pub(crate) struct Messages {
    /// Only of this projection
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Only of this kind; may be given several times
    #[arg(long, value_name = "KIND",
        value_parser = PossibleValuesParser::new(ProjectionMessage::KINDS))]
    kind: Vec<String>,
    /// Show so many of the newest
    #[arg(long, value_name = "N", default_value = "50",
        value_parser = clap::value_parser!(u64).range(1..=LIMIT_MAX))]
    limit: u64,
    /// Go on with new ones as they come, until Ctrl-C
    #[arg(long)]
    follow: bool,
    /// Print them as JSON lines
    #[arg(long)]
    json: bool,
}

impl Messages {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let store = global.target()?.open_existing().await?;
        if self.follow {
            tokio::select! {
                // First, so that it is listened for before anything is printed.
                biased;
                interrupted = tokio::signal::ctrl_c() => interrupted?,
                ended = self.follow(&store) => ended?,
            }
        } else {
            let messages = self.read(&store, self.limit as usize).await?;
            if messages.is_empty() && !self.json {
                let mut output = Output::new();
                output.line("no messages")?;
                output.flush()?;
            }
            self.print(&messages, true)?;
        }
        store.close().await;
        Ok(Outcome::Done)
    }

    /// The oldest first.
    async fn read(&self, store: &Store, limit: usize) -> anyhow::Result<Vec<ProjectionMessage>> {
        let mut query = MessageQuery::default();
        query.projection.clone_from(&self.name);
        query.kinds.clone_from(&self.kind);
        query.limit = limit;
        let mut messages = store.messages(&query).await?;
        messages.reverse();
        Ok(messages)
    }

    async fn follow(&self, store: &Store) -> anyhow::Result<()> {
        let first = self.read(store, FOLLOW_BACK.max(self.limit as usize)).await?;
        let mut told: BTreeSet<i64> = first.iter().map(|message| message.id).collect();
        let from = first.len().saturating_sub(self.limit as usize);
        self.print(&first[from..], true)?;
        loop {
            tokio::time::sleep(FOLLOW_EVERY).await;
            let mut messages = self.read(store, FOLLOW_BACK).await?;
            let all_new = |messages: &[ProjectionMessage]| {
                messages.len() >= FOLLOW_BACK && messages.iter().all(|m| !told.contains(&m.id))
            };
            if all_new(&messages) {
                messages = self.read(store, LIMIT_MAX as usize).await?;
            }
            if messages.len() as u64 >= LIMIT_MAX && all_new(&messages) {
                eprintln!(
                    "more than {LIMIT_MAX} messages in a second; the oldest of them are left out"
                );
            }
            let oldest = messages.first().map(|message| message.id);
            messages.retain(|message| told.insert(message.id));
            self.print(&messages, false)?;
            if let Some(oldest) = oldest {
                told = told.split_off(&oldest);
            }
        }
    }

    fn print(&self, messages: &[ProjectionMessage], header: bool) -> anyhow::Result<()> {
        let mut output = Output::new();
        if self.json {
            for message in messages {
                output.json(message)?;
            }
        } else if !messages.is_empty() {
            let names = ["TIME", "PROJECTION", "VERSION", "KIND", "POSITION", "KEY", "BY"];
            let mut table = if header { Table::new(&names) } else { Table::without_header() };
            for message in messages {
                table.row(cells(message), vec![shown(&message.message)]);
            }
            output.line(table)?;
        }
        output.flush()
    }
}

fn cells(message: &ProjectionMessage) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    vec![
        message.recorded_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        message.projection.clone(),
        message.version.to_string(),
        shown(&message.kind),
        or_dash(message.position.map(|position| position.to_string())),
        or_dash(message.key.as_deref().map(shown)),
        shown(&message.actor),
    ]
}
