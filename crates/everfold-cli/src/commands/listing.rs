//! Lists of what projections have: rebuilds, snapshots, dead letters, skips. A table, or JSON lines.

use clap::Args;
use serde::Serialize;

use crate::failure::Outcome;
use crate::output::Output;
use crate::table::Table;

/// Of which projection, and how.
#[derive(Debug, Args)]
pub(super) struct Listing {
    /// Only of this projection
    #[arg(value_name = "NAME")]
    pub(super) name: Option<String>,
    /// Print them as JSON lines
    #[arg(long)]
    pub(super) json: bool,
}

/// A list that is being printed: JSON line by line, a table at the end.
pub(super) struct List {
    output: Output,
    table: Table,
    json: bool,
    is_empty: bool,
}

impl List {
    pub(super) fn new(json: bool, columns: &[&str]) -> List {
        List { output: Output::new(), table: Table::new(columns), json, is_empty: true }
    }

    /// One more: its cells, and the lines below them.
    pub(super) fn add(
        &mut self,
        value: &impl Serialize,
        cells: Vec<String>,
        below: Vec<String>,
    ) -> anyhow::Result<()> {
        self.is_empty = false;
        if self.json {
            return self.output.json(value);
        }
        self.table.row(cells, below);
        Ok(())
    }

    /// Prints what there is, or that there is nothing.
    pub(super) fn end(mut self, nothing: &str) -> anyhow::Result<Outcome> {
        match (self.json, self.is_empty) {
            (true, _) => {}
            (false, false) => self.output.line(&self.table)?,
            (false, true) => self.output.line(nothing)?,
        }
        self.output.flush()?;
        Ok(Outcome::Done)
    }
}
