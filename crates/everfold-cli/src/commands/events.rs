//! `everfold events`.

use clap::Args;
use everfold::{RecordedEvent, Store};
use futures::FutureExt;
use futures::stream::StreamExt;

use crate::cli::Global;
use crate::event_line;
use crate::failure::Outcome;
use crate::output::{self, Output};
use crate::selection::{self, Selection};

/// Show events, one a line
#[derive(Debug, Args)]
#[command(after_help = "\
A line has position, time, stream@version, type and data; --json writes the lines of `export`.

Examples:
  everfold events --limit 20
  everfold events --stream cart-1 --backward --limit 1
  everfold events --type ItemAdded --type ItemRemoved --from 5000
  everfold events --follow --new --json | jq .data")]
pub(crate) struct Events {
    #[command(flatten)]
    selection: Selection,
    /// Show at most so many events
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Begin with the last event of the stream
    #[arg(long, requires = "stream", conflicts_with = "follow")]
    backward: bool,
    /// Go on with new events as they come, until Ctrl-C
    #[arg(long)]
    follow: bool,
    /// With --follow, leave out the events that are there already
    #[arg(long, requires = "follow", conflicts_with = "from")]
    new: bool,
    /// Print the events as JSON lines
    #[arg(long)]
    json: bool,
}

impl Events {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let store = global.target()?.open_existing().await?;
        let mut printer = Printer::new(self.json);
        if self.follow {
            self.follow(&store, &mut printer).await?;
        } else {
            printer.print(self.read(&store)).await?;
            if printer.printed == 0 && !self.json {
                eprintln!("no events{}", self.selection.described());
            }
        }
        printer.output.flush()?;
        store.close().await;
        Ok(Outcome::Done)
    }

    fn read(&self, store: &Store) -> selection::Events {
        if self.backward {
            self.selection.backward(store, self.limit)
        } else {
            self.selection.forward(store, self.limit)
        }
    }

    async fn follow(mut self, store: &Store, printer: &mut Printer) -> anyhow::Result<()> {
        tokio::select! {
            // First, so that it is listened for before anything is printed.
            biased;
            interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
            ended = async {
                if self.new {
                    self.selection.from = Some(store.high_water_mark().await?.0 + 1);
                }
                printer.print(self.selection.follow(store, self.limit).await?).await
            } => ended,
        }
    }
}

struct Printer {
    output: Output,
    json: bool,
    width: Option<usize>,
    printed: u64,
}

impl Printer {
    fn new(json: bool) -> Printer {
        Printer { output: Output::new(), json, width: output::terminal_width(), printed: 0 }
    }

    /// Prints all events; what was printed is seen whenever there is nothing more to print yet.
    async fn print(&mut self, mut events: selection::Events) -> anyhow::Result<()> {
        loop {
            let next = match events.next().now_or_never() {
                Some(next) => next,
                None => {
                    self.output.flush()?;
                    events.next().await
                }
            };
            match next {
                Some(event) => self.line(&event?)?,
                None => return Ok(()),
            }
        }
    }

    fn line(&mut self, event: &RecordedEvent) -> anyhow::Result<()> {
        self.printed += 1;
        if self.json {
            self.output.line(event_line::json(event)?)
        } else {
            self.output.line(event_line::text(event, self.width))
        }
    }
}
