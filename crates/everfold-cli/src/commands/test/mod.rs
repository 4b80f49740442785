//! `everfold test`: given/then files for the projections of a project.
//!
//! ```text
//!   tests/*.toml ──file──> cases ──check──> run (the library's kit, scratch stores) ──> report
//! ```

mod check;
mod file;
mod nearest;
mod report;
mod run;
mod toml_node;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::bail;
use clap::Args;
use everfold::Projection;

use crate::cli::Global;
use crate::failure::Outcome;
use crate::project::{sqlite_path, test_url};
use crate::signals::Signals;
use report::Report;
use run::{Bench, Verdict};

/// What a shell says of a process that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

const HOW_TO: &str = "\
write one, as in tests/cart_totals.toml:

  [[case]]
  name = \"what is removed is taken off\"
  projection = \"cart_totals\"
  given = [
      { stream = \"cart-1\", type = \"ItemAdded\", data = { quantity = 3 } },
      { stream = \"cart-1\", type = \"ItemRemoved\", data = { quantity = 1 } },
  ]
  then.cart_totals = [{ cart_id = \"cart-1\", items = 2 }]";

/// Test the project's projections: given events, then rows, also in other batches and orders
///
/// Reads the cases in tests/*.toml, gives their events to a projection, and compares the tables of
/// its read model. Then it does so again in other ways that must make no difference: in batches of
/// 1, 2 and 7, with a crash before each commit, with every append repeated, with the streams in
/// another order, in shards, inline instead of catch-up or the other way round.
#[derive(Debug, Args)]
#[command(after_help = "\
The project's store is not touched. Each way has an empty store of its own, removed
afterwards: a SQLite file in the system's folder for such, or, if --url or else
`[test] url` in everfold.toml names a PostgreSQL server, a database on it (the role
needs CREATEDB). EVERFOLD_URL and `[store] url` are not looked at.

Exits with 3 if a case found a difference, with 1 if one could not be run or there
is none. What a file looks like: docs/reference/toml.md.

Examples:
  everfold test
  everfold test cart_totals
  everfold test tests/late_bookings.toml \"is taken off\"
  everfold test --url postgres://me@localhost/postgres --json")]
pub(crate) struct Test {
    /// Only cases of this projection, in this file, or with this in their name [default: all]
    #[arg(value_name = "NAME|FILE")]
    only: Vec<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Test {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let folder = global.folder();
        let url = test_url(global)?;
        let projections = Projection::load_all(folder)?;
        let cases = file::load_all(folder)?;
        check::projections(&cases, &projections)?;
        if cases.is_empty() {
            bail!("no cases in {}; {HOW_TO}", folder.join(file::FOLDER).display());
        }
        let cases = check::select(cases, &self.only)?;

        let stop = stop_on_signals()?;
        let is_sqlite = url.as_deref().is_none_or(|url| sqlite_path(url).is_some());
        let store = if is_sqlite { "sqlite" } else { "postgres" };
        let mut report = Report::new(store, self.json);
        let mut bench = Bench::new(projections, url, stop);
        for case in &cases {
            match bench.run(case).await {
                Verdict::Stopped => bail!("stopped; not all cases were run"),
                verdict => report.tell(case, verdict)?,
            }
        }
        Ok(match report.end()? {
            (_, 1..) => Outcome::Failed,
            (1.., 0) => Outcome::Unhealthy,
            (0, 0) => Outcome::Done,
        })
    }
}

/// Becomes true with the first signal: what is under way is ended and cleaned up. With the second one
/// the process ends at once.
fn stop_on_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let mut signals = Signals::listen()?;
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    tokio::spawn(async move {
        signals.next().await;
        told.store(true, Ordering::Relaxed);
        signals.next().await;
        std::process::exit(INTERRUPTED);
    });
    Ok(stop)
}
