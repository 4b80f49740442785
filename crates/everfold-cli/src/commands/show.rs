//! `everfold show`.

use std::collections::HashMap;

use clap::Args;
use everfold::{ReadModelRows, RowOptions};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::cli::Global;
use crate::failure::Outcome;
use crate::output::{Output, count, shown};
use crate::table::Table;

/// A longer value of a cell is cut in the table; --json has all of it.
const CELL_MAX: usize = 60;

/// Show rows of a read model, as readers see them
#[derive(Debug, Args)]
#[command(after_help = "\
For a look without a client of the database: rows in the order of the first column. An
application reads the views with SQL: read_model.<table>, in a SQLite file
read_model_<table>. With --json there is one line for each row.

Examples:
  everfold show cart_totals
  everfold show cart_totals --where cart_id=cart-1001
  everfold show cart_totals --limit 1000 --json | jq .row")]
pub(crate) struct Show {
    /// The projection
    #[arg(value_name = "NAME")]
    name: String,
    /// Only this table of it [default: all]
    #[arg(long, value_name = "TABLE")]
    table: Option<String>,
    /// Only rows in which this column has this value; can be given several times
    #[arg(long = "where", value_name = "COLUMN=VALUE", value_parser = equal)]
    equal: Vec<(String, String)>,
    /// Most rows of a table
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
    /// Print them as JSON lines
    #[arg(long)]
    json: bool,
}

fn equal(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((column, value)) if !column.is_empty() => Ok((column.to_owned(), value.to_owned())),
        _ => Err("use COLUMN=VALUE".to_owned()),
    }
}

#[derive(Serialize)]
struct Shown<'a> {
    table: &'a str,
    row: &'a RawValue,
}

impl Show {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let store = global.target()?.open_existing().await?;
        let mut options = RowOptions::default();
        (options.table, options.equal, options.limit) = (self.table, self.equal, self.limit);
        let found = store.read_model_rows(&self.name, &options).await;
        store.close().await;
        let mut output = Output::new();
        for (index, rows) in found?.iter().enumerate() {
            match self.json {
                true => print_json(&mut output, rows)?,
                false => print_table(&mut output, rows, index > 0)?,
            }
        }
        output.flush()?;
        Ok(Outcome::Done)
    }
}

fn print_json(output: &mut Output, rows: &ReadModelRows) -> anyhow::Result<()> {
    rows.rows.iter().try_for_each(|row| output.json(&Shown { table: &rows.table, row }))
}

fn print_table(output: &mut Output, rows: &ReadModelRows, apart: bool) -> anyhow::Result<()> {
    if apart {
        output.line("")?;
    }
    let more = if rows.more { ", and more" } else { "" };
    output.line(format!("{}: {}{more}", rows.table, count(rows.rows.len() as u64, "row")))?;
    if rows.rows.is_empty() {
        return Ok(());
    }
    let columns: Vec<&str> = rows.columns.iter().map(String::as_str).collect();
    let mut table = Table::new(&columns);
    for row in &rows.rows {
        let values: HashMap<String, &RawValue> = serde_json::from_str(row.get())?;
        let cells = columns.iter().map(|column| values.get(*column).map_or_else(String::new, cell));
        table.row(cells.collect(), Vec::new());
    }
    output.line(table)
}

/// A value as it is read, not as JSON has it: text without quotes, nothing for NULL.
fn cell(value: &&RawValue) -> String {
    let text = match serde_json::from_str(value.get()) {
        Ok(serde_json::Value::Null) => String::new(),
        Ok(serde_json::Value::String(text)) => text,
        _ => value.get().to_owned(),
    };
    let text = shown(&text);
    match text.char_indices().nth(CELL_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
