//! `everfold export`.

mod resume;

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, anyhow};
use clap::Args;
use everfold::{RecordedEvent, Store, StoreError};
use futures::stream::StreamExt;
use indicatif::HumanCount;
use serde::Serialize;

use crate::cli::Global;
use crate::event_line;
use crate::failure::Outcome;
use crate::output::{self, Output, count};
use crate::progress::{Progress, per_second};
use crate::selection::Selection;

/// Export events as JSON lines, with all columns
#[derive(Debug, Args)]
#[command(after_help = "\
Data and metadata are written as they are stored, so that numbers keep every digit.

Examples:
  everfold export --output events.jsonl
  everfold export --output events.jsonl --resume
  everfold export --stream cart-1 --type ItemAdded | jq .data
  everfold export | everfold --url postgres://db/shop import - --name shop")]
pub(crate) struct Export {
    /// The file to write, which must not exist [default: stdout]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    selection: Selection,
    /// Go on behind the last complete line of the file
    #[arg(long, requires = "output")]
    resume: bool,
    /// With --output, print what was done as JSON; the events are JSON in any case
    #[arg(long)]
    json: bool,
}

#[derive(Default, Serialize)]
struct Exported {
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
    events: u64,
    resumed_after: Option<u64>,
    last_position: Option<u64>,
}

impl Export {
    pub(crate) async fn run(mut self, global: &Global) -> anyhow::Result<Outcome> {
        let store = global.target()?.open_existing().await?;
        match self.output.clone() {
            None => {
                let mut output = Output::new();
                let exported = self.write(&store, &mut output, output::refused).await?;
                exported.tell_on_stderr();
            }
            Some(path) => {
                let exported = self.write_file(&store, &path).await?;
                if self.json {
                    let mut output = Output::new();
                    output.json(&exported)?;
                    output.flush()?;
                } else {
                    exported.tell_on_stderr();
                }
            }
        }
        store.close().await;
        Ok(Outcome::Done)
    }

    async fn write_file(&mut self, store: &Store, path: &Path) -> anyhow::Result<Exported> {
        let (file, resumed_after) = self.open(path)?;
        if let Some(last) = resumed_after {
            self.selection.from = self.selection.from.max(Some(last + 1));
        }
        let refused =
            |error| anyhow::Error::new(error).context(format!("cannot write {}", path.display()));
        let mut writer = BufWriter::with_capacity(256 * 1024, file);
        let exported = self.write(store, &mut writer, refused).await.with_context(|| {
            format!(
                "the export stopped; go on with `everfold export --output {} --resume`",
                path.display()
            )
        })?;
        writer.get_ref().sync_all().map_err(refused)?;
        let output = Some(path.display().to_string());
        Ok(Exported { output, resumed_after, ..exported })
    }

    /// The file, and the position after which it goes on.
    fn open(&self, path: &Path) -> anyhow::Result<(File, Option<u64>)> {
        let shown = path.display();
        if self.resume && path.exists() {
            return resume::open(path);
        }
        match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(file) => Ok((file, None)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(anyhow!(
                "{shown} exists already; name another file, or go on with it with --resume"
            )),
            Err(error) => Err(error).with_context(|| format!("cannot write {shown}")),
        }
    }

    async fn write(
        &self,
        store: &Store,
        writer: &mut impl Write,
        refused: impl Fn(io::Error) -> anyhow::Error,
    ) -> anyhow::Result<Exported> {
        let mut exported = Exported::default();
        // On a terminal the events themselves are the progress.
        let hidden = self.output.is_none() && io::stdout().is_terminal();
        let mut progress =
            if hidden { None } else { Some(ShownProgress::new(&self.selection, store).await?) };
        let mut events = self.selection.forward(store, None);
        while let Some(event) = events.next().await {
            let event = event?;
            let mut line = event_line::json(&event)
                .with_context(|| format!("the event at position {} is broken", event.position))?;
            line.push('\n');
            writer.write_all(line.as_bytes()).map_err(&refused)?;
            exported.events += 1;
            exported.last_position = Some(event.position.0);
            if let Some(progress) = &mut progress {
                progress.set(&event, exported.events);
            }
        }
        writer.flush().map_err(&refused)?;
        Ok(exported)
    }
}

impl Exported {
    fn tell_on_stderr(&self) {
        let events = count(self.events, "event");
        let to = self.output.as_deref().map(|file| format!(" to {file}")).unwrap_or_default();
        match self.last_position {
            Some(last) => eprintln!("exported {events}{to}, the last at position {last}"),
            None => eprintln!("exported no events{to}: there are none to export"),
        }
    }
}

/// Progress against the high-water mark, or against the version of the one stream.
struct ShownProgress {
    progress: Progress,
    /// The place before the first event.
    start: u64,
    of_stream: bool,
    begun: Instant,
}

impl ShownProgress {
    async fn new(selection: &Selection, store: &Store) -> Result<ShownProgress, StoreError> {
        let (start, end) = match &selection.stream {
            Some(stream) => (0, store.stream_version(stream).await?.0),
            None => (selection.after().0, store.high_water_mark().await?.0),
        };
        let progress = Progress::new("exporting", Some(end.saturating_sub(start)));
        let of_stream = selection.stream.is_some();
        Ok(ShownProgress { progress, start, of_stream, begun: Instant::now() })
    }

    fn set(&mut self, event: &RecordedEvent, events: u64) {
        let place = if self.of_stream { event.version.0 } else { event.position.0 };
        let begun = self.begun;
        self.progress.set(place - self.start, || {
            let rate = HumanCount(per_second(events, begun.elapsed()));
            format!("{}, {rate}/s", count(events, "event"))
        });
    }
}
