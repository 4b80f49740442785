//! `everfold append`.

use std::fmt;
use std::io::{self, Read};
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use everfold::sqlite::rusqlite::{Connection, TransactionBehavior};
use everfold::{AppendError, ExpectedVersion, Metadata, NewEvent, StreamAppend, Uuid, Version};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::cli::Global;
use crate::dry_run::{self, DryRun};
use crate::failure::{Outcome, Usage};
use crate::output;
use crate::project::{self, Target};

/// Append events to a stream, all or none
#[derive(Debug, Args)]
#[command(after_help = "\
An event's id is its idempotency key: appending it again with the same id, type
and data stores nothing and prints the first result. A dry run appends in a transaction that
is rolled back, so that it is refused by whatever would refuse it; on PostgreSQL it uses
up positions, which have gaps anyway.

Examples:
  everfold append --stream cart-1 --type ItemAdded --data '{\"sku\":\"A1\",\"quantity\":2}'
  everfold append --stream cart-1 --type CheckedOut --expected 1 --dry-run
  everfold append --stream cart-1 --type Imported --data @cart.json
  echo '[{\"type\":\"ItemAdded\",\"data\":{\"sku\":\"B2\"}}]' | everfold append --stream cart-2 --events -")]
pub(crate) struct Append {
    /// The stream
    #[arg(long, value_name = "STREAM")]
    stream: String,
    /// The event's type
    #[arg(long = "type", value_name = "TYPE", required_unless_present = "events")]
    event_type: Option<String>,
    /// The event's data: JSON, - for stdin, or @ and a file [default: {}]
    #[arg(long, value_name = "JSON|-|@FILE")]
    data: Option<String>,
    /// The event's metadata: a JSON object
    #[arg(long, value_name = "JSON")]
    metadata: Option<String>,
    /// The event's id [default: a new one]
    #[arg(long, value_name = "UUID")]
    id: Option<Uuid>,
    /// The version of the data's shape [default: 1]
    #[arg(long, value_name = "N")]
    schema_version: Option<u32>,
    /// What the stream must be like: any, none (it must not exist), exists, or its version
    #[arg(long, value_name = "VERSION", default_value = "any", value_parser = expected)]
    expected: ExpectedVersion,
    /// Many events: a file (- for stdin) with a JSON array of {"type", "data", "metadata"?, "id"?,
    /// "schema_version"?}
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["event_type", "data", "metadata", "id", "schema_version"]
    )]
    events: Option<String>,
    #[command(flatten)]
    dry: DryRun,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// How long a dry run waits for those who write to the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

fn expected(text: &str) -> Result<ExpectedVersion, String> {
    match text {
        "any" => Ok(ExpectedVersion::Any),
        "none" => Ok(ExpectedVersion::NoStream),
        "exists" => Ok(ExpectedVersion::Exists),
        number => number
            .parse()
            .map(|version| ExpectedVersion::Exact(Version(version)))
            .map_err(|_| "use any, none, exists, or the version as a number".to_owned()),
    }
}

/// A conflict with what to do about it.
fn advise(error: AppendError) -> anyhow::Error {
    match &error {
        AppendError::VersionConflict { stream, .. } => {
            let stream = output::shown(stream.as_str());
            anyhow!("{error}; look at `everfold events --stream {stream}` and decide again")
        }
        _ => error.into(),
    }
}

#[derive(Serialize)]
struct Appended {
    stream_id: String,
    events: usize,
    first_position: u64,
    last_position: u64,
    version: u64,
}

impl Append {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let target = global.target()?;
        let events = match &self.events {
            Some(source) => many(source)?,
            None => vec![self.one()?],
        };
        let count = events.len();
        if self.dry.dry_run {
            let append = StreamAppend::new(self.stream.clone(), self.expected, events);
            let appended = try_and_roll_back(&target, append).await?;
            let (stream, version) = (output::shown(&self.stream), appended.version);
            let events = output::count(count as u64, "event");
            let would = format!("append {events} to {stream}, which is at version {version} then");
            return dry_run::tell(vec![would], self.json);
        }
        let store = target.open_or_create().await?;
        let appended = store.append(&self.stream, self.expected, events).await.map_err(advise)?;
        store.close().await;
        let appended = Appended {
            stream_id: self.stream,
            events: count,
            first_position: appended.first_position.0,
            last_position: appended.last_position.0,
            version: appended.version.0,
        };
        output::print(&appended, self.json)?;
        Ok(Outcome::Done)
    }

    fn one(&self) -> anyhow::Result<NewEvent> {
        let event_type = self.event_type.as_deref().unwrap_or_default();
        let data = match self.data.as_deref() {
            None => "{}".to_owned(),
            Some("-") => read("-")?,
            Some(text) => match text.strip_prefix('@') {
                Some(file) => read(file)?,
                None => text.to_owned(),
            },
        };
        let data: &RawValue = serde_json::from_str(&data)
            .map_err(|error| Usage(format!("--data is not JSON: {error}")))?;
        let mut event = NewEvent::from_json(event_type, data.get())?;
        if let Some(text) = &self.metadata {
            let metadata: Map<String, Value> = serde_json::from_str(text)
                .map_err(|error| Usage(format!("--metadata is not a JSON object: {error}")))?;
            event = event.with_metadata(Metadata::from(metadata));
        }
        if let Some(id) = self.id {
            event = event.with_id(id);
        }
        if let Some(schema_version) = self.schema_version {
            event = event.with_schema_version(schema_version);
        }
        Ok(event)
    }
}

/// Appends, and takes it back: everything that refuses an append has its say.
async fn try_and_roll_back(
    target: &Target,
    append: StreamAppend,
) -> anyhow::Result<everfold::Appended> {
    // For its checks of file and schema.
    target.open_existing().await?.close().await;
    let Some(path) = project::sqlite_path(target.url()) else {
        let mut client = everfold::postgres::connect(target.url()).await?;
        let transaction = client.transaction().await?;
        let appended = everfold::postgres::append_in(&transaction, &append).await;
        transaction.rollback().await?;
        return appended.map_err(advise);
    };
    let path = path.to_owned();
    let tried = tokio::task::spawn_blocking(move || {
        let mut connection = Connection::open(path)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        let behavior = TransactionBehavior::Immediate;
        let transaction = connection.transaction_with_behavior(behavior)?;
        let appended = everfold::sqlite::append_in(&transaction, &append);
        transaction.rollback()?;
        appended.map_err(advise)
    });
    tried.await?
}

/// An event of `--events`, in the form that the SQL function takes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given<'a> {
    #[serde(rename = "type")]
    event_type: String,
    #[serde(borrow)]
    data: &'a RawValue,
    metadata: Option<Map<String, Value>>,
    id: Option<Uuid>,
    schema_version: Option<u32>,
}

fn many(source: &str) -> anyhow::Result<Vec<NewEvent>> {
    let text = read(source)?;
    let shown = if source == "-" { "stdin" } else { source };
    let given: Vec<&RawValue> = serde_json::from_str(&text)
        .with_context(|| format!("{shown} is not a JSON array of events"))?;
    let events = given.into_iter().enumerate().map(|(index, event)| {
        event_of(event).map_err(|error| {
            let number = index + 1;
            anyhow!(
                "event {number} of {shown}: {error}; an event is {{\"type\", \"data\", \
                 \"metadata\"?, \"id\"?, \"schema_version\"?}}"
            )
        })
    });
    events.collect()
}

fn event_of(event: &RawValue) -> Result<NewEvent, String> {
    let given: Given<'_> = serde_json::from_str(event.get()).map_err(|error| error.to_string())?;
    let event = NewEvent::from_json(given.event_type, given.data.get())
        .map_err(|error| error.to_string())?
        .with_schema_version(given.schema_version.unwrap_or(1))
        .with_metadata(given.metadata.unwrap_or_default().into());
    Ok(match given.id {
        Some(id) => event.with_id(id),
        None => event,
    })
}

/// All of a file, or of stdin.
fn read(source: &str) -> anyhow::Result<String> {
    if source != "-" {
        return std::fs::read_to_string(source).with_context(|| format!("cannot read {source}"));
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).context("cannot read stdin")?;
    Ok(text)
}

impl fmt::Display for Appended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Appended { stream_id, events, first_position, last_position, version } = self;
        let stream = output::shown(stream_id);
        if *events == 1 {
            write!(f, "appended 1 event to {stream}: position {last_position}, version {version}")
        } else {
            write!(
                f,
                "appended {events} events to {stream}: positions {first_position} to \
                 {last_position}, version {version}"
            )
        }
    }
}
