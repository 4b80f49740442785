//! `--dry-run`, on whatever changes data: what would be done is told, and nothing is.
//!
//! A dry run looks at what the command would look at first, and is refused by the same things as far as a
//! look can tell. It opens only a store that is there.

use std::fmt;

use clap::Args;
use serde::Serialize;

use crate::failure::Outcome;
use crate::output;

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct DryRun {
    /// Only say what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// What would be done, a sentence each that goes on after "would".
#[derive(Serialize)]
struct Would {
    dry_run: bool,
    would: Vec<String>,
}

/// Tells what would be done.
pub(crate) fn tell(would: Vec<String>, json: bool) -> anyhow::Result<Outcome> {
    output::print(&Would { dry_run: true, would }, json)?;
    Ok(Outcome::Done)
}

impl fmt::Display for Would {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.would.is_empty() {
            return f.write_str("would do nothing");
        }
        for (index, what) in self.would.iter().enumerate() {
            let line_break = if index > 0 { "\n" } else { "" };
            write!(f, "{line_break}would {what}")?;
        }
        Ok(())
    }
}
