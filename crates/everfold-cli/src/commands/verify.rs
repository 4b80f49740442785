//! `everfold verify`.

use std::fmt;

use anyhow::bail;
use clap::Args;
use everfold::{ProjectionError, Store, Verification, VerifyOptions, VerifyScope};
use indicatif::HumanCount;
use serde::Serialize;

use crate::age;
use crate::cli::Global;
use crate::commands::differences;
use crate::failure::Outcome;
use crate::output::{self, count};
use crate::signals::Signals;
use crate::size;

/// Keys that are looked at where nothing else is said.
const SAMPLE: usize = 100;

/// Compute a read model again from the log while everything runs, and compare
#[derive(Debug, Args)]
#[command(after_help = "\
Exits with 3 if rows differ, and shows the first of them. Events that are owed or put
aside are left out on both sides. What was found is kept: `everfold status` and
`everfold health` show it. Nothing is mended: `everfold rebuild` does.

Examples:
  everfold verify cart_totals
  everfold verify cart_totals --sample 1000
  everfold verify cart_totals --keys cart-1 cart-2
  everfold verify cart_totals --all --json")]
pub(crate) struct Verify {
    /// The projection
    #[arg(value_name = "NAME")]
    name: String,
    /// So many keys, picked at random from the log [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    sample: Option<u32>,
    /// All of it
    #[arg(long, conflicts_with = "sample")]
    all: bool,
    /// These keys: streams, unless the projection has another key
    #[arg(long, value_name = "KEY", num_args = 1.., conflicts_with_all = ["sample", "all"])]
    keys: Vec<String>,
    /// Most memory for what is folded [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    memory: Option<usize>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    equal: bool,
    #[serde(flatten)]
    verification: Verification,
}

impl Verify {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let mut signals = Signals::listen()?;
        let store = global.target()?.open_existing().await?;
        let verified = tokio::select! {
            biased;
            () = signals.next() => {
                eprintln!("stopped; nothing was changed");
                return Ok(Outcome::Failed);
            }
            verified = self.verify(&store) => verified,
        };
        store.close().await;
        let verification = verified?;
        if verification.compared == 0 && !self.keys.is_empty() {
            let keys = self.keys.join(", ");
            bail!("nothing was compared: neither the log nor {} has the key {keys}", self.name);
        }
        let equal = verification.differences == 0;
        output::print(&Report { equal, verification }, self.json)?;
        Ok(if equal { Outcome::Done } else { Outcome::Unhealthy })
    }

    async fn verify(&self, store: &Store) -> Result<Verification, ProjectionError> {
        let mut options = VerifyOptions::default();
        options.scope = match (self.all, self.sample) {
            (true, _) => VerifyScope::All,
            _ if !self.keys.is_empty() => VerifyScope::Keys(self.keys.clone()),
            (_, sample) => VerifyScope::Sample(sample.map_or(SAMPLE, |sample| sample as usize)),
        };
        if let Some(memory) = self.memory {
            options.memory_max = memory;
        }
        store.verify(&self.name, options).await
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verification { name, version, scope, position, .. } = &self.verification;
        let rows = count(self.verification.compared, "row");
        let took = age::shown(self.verification.duration.as_secs_f64());
        write!(f, "{name} version {version} at position {position}: compared {rows} ({scope})")?;
        write!(f, " in {took}, ")?;
        if self.equal {
            return write!(f, "all are as the log says");
        }
        let (differ, shown) = (self.verification.differences, &self.verification.examples);
        writeln!(f, "{}", output::differ(differ))?;
        write!(f, "{}", differences::table(shown, "EXPECTED", "FOUND"))?;
        match differ > shown.len() as u64 {
            true => write!(f, "\nand {} more", HumanCount(differ - shown.len() as u64)),
            false => Ok(()),
        }
    }
}
