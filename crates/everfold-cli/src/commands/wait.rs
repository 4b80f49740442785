//! `everfold wait`.

use std::fmt;
use std::time::Duration;

use clap::Args;
use everfold::{Position, ProjectionError};
use serde::Serialize;

use crate::age;
use crate::cli::Global;
use crate::failure::Outcome;
use crate::output;

/// Wait until a projection shows everything up to a position
///
/// Exact: nothing at or below the position is missing, owed, or put aside as a dead letter.
#[derive(Debug, Args)]
#[command(after_help = "\
Exits with 3 and the reason if it is not reached in time. The position to wait for is
the one that an append prints.

Examples:
  everfold wait cart_totals
  everfold wait cart_totals --at 1042 --timeout 5
  everfold wait daily_totals --timeout 500ms --stale   the old answer will do")]
pub(crate) struct Wait {
    /// The projection
    #[arg(value_name = "NAME")]
    name: String,
    /// The position [default: the last event of the store]
    #[arg(long, value_name = "POSITION")]
    at: Option<u64>,
    /// How long to wait: seconds, or a number with ms, s, m or h
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = age::parse)]
    timeout: Duration,
    /// Exit with 0 also when it is not reached: something old is good enough
    #[arg(long)]
    stale: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Waited {
    projection: String,
    position: Position,
    reached: bool,
    /// Why not.
    reason: Option<String>,
}

impl Wait {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let store = global.target()?.open_existing().await?;
        let position = match self.at {
            Some(position) => Position(position),
            None => store.last_position().await?,
        };
        let waited = store.wait_for(&self.name, position, self.timeout).await;
        store.close().await;
        let (error, reason) = match waited {
            Ok(()) => (None, None),
            Err(error) => match &error {
                ProjectionError::NotReached { reason, .. } => {
                    let reason = reason.clone();
                    (Some(error), Some(reason))
                }
                _ => return Err(error.into()),
            },
        };
        let reached = error.is_none();
        if reached || self.stale || self.json {
            let waited = Waited { projection: self.name, position, reached, reason };
            output::print(&waited, self.json)?;
        }
        match error {
            Some(error) if !self.stale => {
                eprintln!("error: {error}");
                Ok(Outcome::Unhealthy)
            }
            _ => Ok(Outcome::Done),
        }
    }
}

impl fmt::Display for Waited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Waited { projection, position, reason, .. } = self;
        match reason {
            None => write!(f, "{projection} has reached position {position}"),
            Some(reason) => write!(f, "{projection} is stale at position {position}: {reason}"),
        }
    }
}
