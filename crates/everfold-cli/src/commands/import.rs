//! `everfold import`.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use everfold::{ImportOptions, ImportProgress, Store};
use indicatif::{HumanBytes, HumanCount};
use serde::Serialize;

use crate::cli::Global;
use crate::dry_run;
use crate::failure::{Outcome, Usage};
use crate::output;
use crate::progress::{Progress, per_second};

/// Import events from JSON lines, as `export` writes them
///
/// An import that was stopped goes on behind the last line that is stored when it is run again.
#[derive(Debug, Args)]
#[command(after_help = "\
A line is {\"stream_id\", \"type\", \"data\", \"metadata\"?, \"id\"?, \"schema_version\"?, \"version\"?,
\"recorded_at\"?}. Its position is read over: every store gives its own.

Examples:
  everfold import events.jsonl --dry-run     is every line an event?
  everfold import events.jsonl
  everfold export --url postgres://old/shop | everfold import - --name old-shop")]
pub(crate) struct Import {
    /// The file, - for stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// What the import's progress is kept under [default: the file's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Give every event the next version of its stream, whatever its line says
    #[arg(long)]
    renumber: bool,
    /// Read and check every line, and store nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Imported {
    name: String,
    stored: u64,
    repeated: u64,
    resumed_after: u64,
    lines: u64,
    bytes: u64,
}

/// What is imported: lines, and how many bytes of them there are if that is known.
struct Source {
    lines: Box<dyn BufRead + Send>,
    bytes: Option<u64>,
}

impl Import {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let name = self.name()?;
        let source = self.source()?;
        let target = global.target()?;
        let store = match self.dry_run {
            true => target.open_existing().await?,
            false => target.open_or_create().await?,
        };
        let imported = self.import(&store, &name, source).await?;
        store.close().await;
        if self.dry_run {
            return dry_run::tell(imported.would(), self.json);
        }
        output::print(&imported, self.json)?;
        Ok(Outcome::Done)
    }

    async fn import(&self, store: &Store, name: &str, source: Source) -> anyhow::Result<Imported> {
        let mut options = ImportOptions::default();
        options.renumber = self.renumber;
        options.dry_run = self.dry_run;
        let mut shown = ShownProgress::new(source.bytes);
        let outcome =
            store.import(name, source.lines, options, |progress| shown.set(progress)).await;
        drop(shown);
        let imported = outcome.with_context(|| format!("import \"{name}\" stopped"))?;
        Ok(Imported {
            name: name.to_owned(),
            stored: imported.stored,
            repeated: imported.repeated,
            resumed_after: imported.resumed_after,
            lines: imported.progress.lines,
            bytes: imported.progress.bytes,
        })
    }

    fn name(&self) -> anyhow::Result<String> {
        if let Some(name) = &self.name {
            return Ok(name.clone());
        }
        if self.file == Path::new("-") {
            let message = "an import from stdin needs a --name, under which its progress is kept";
            return Err(Usage(message.to_owned()).into());
        }
        let name = self.file.file_name().and_then(|name| name.to_str());
        Ok(name.with_context(|| format!("{} has no usable name", self.file.display()))?.to_owned())
    }

    fn source(&self) -> anyhow::Result<Source> {
        if self.file == Path::new("-") {
            return Ok(Source { lines: Box::new(BufReader::new(io::stdin())), bytes: None });
        }
        let refused = || format!("cannot read {}", self.file.display());
        let file = File::open(&self.file).with_context(refused)?;
        let metadata = file.metadata().with_context(refused)?;
        if metadata.is_dir() {
            return Err(anyhow::anyhow!("it is a folder").context(refused()));
        }
        // A pipe has no length.
        let bytes = metadata.is_file().then_some(metadata.len());
        Ok(Source { lines: Box::new(BufReader::with_capacity(256 * 1024, file)), bytes })
    }
}

impl Imported {
    /// What importing these lines would do.
    fn would(&self) -> Vec<String> {
        let events = output::count(self.stored, "event");
        let after = match self.resumed_after {
            0 => String::new(),
            lines => format!(", behind the {} that are stored", output::count(lines, "line")),
        };
        let store = format!("store {events} as import \"{}\"{after}", self.name);
        let refuse =
            "refuse ids and versions that are taken, which only shows when they are stored";
        match self.stored {
            0 => Vec::new(),
            _ => vec![store, refuse.to_owned()],
        }
    }
}

struct ShownProgress {
    progress: Progress,
    begun: Instant,
    /// Lines that were there at the start, which say nothing about the speed.
    before: Option<u64>,
}

impl ShownProgress {
    fn new(bytes: Option<u64>) -> ShownProgress {
        let progress = Progress::new("importing", bytes);
        ShownProgress { progress, begun: Instant::now(), before: None }
    }

    fn set(&mut self, now: &ImportProgress) {
        let lines = now.lines - *self.before.get_or_insert(now.lines);
        let rate = per_second(lines, self.begun.elapsed());
        self.progress.set(now.bytes, || {
            let (bytes, lines) = (HumanBytes(now.bytes), HumanCount(now.lines));
            format!("{bytes}, {lines} lines, {}/s", HumanCount(rate))
        });
    }
}

impl fmt::Display for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [stored, repeated, resumed, lines] =
            [self.stored, self.repeated, self.resumed_after, self.lines].map(HumanCount);
        writeln!(f, "import \"{}\" is done after line {lines}", output::shown(&self.name))?;
        writeln!(f, "  stored    {stored}")?;
        write!(f, "  repeated  {repeated}")?;
        if self.resumed_after > 0 {
            write!(f, "\n  resumed   after line {resumed}, where an earlier run had stopped")?;
        }
        Ok(())
    }
}
