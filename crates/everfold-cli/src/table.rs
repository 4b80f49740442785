//! Columns of text, as wide as they need to be.

use std::fmt;

/// Rows under a header. Lines that belong to a row stand below it.
pub(crate) struct Table {
    rows: Vec<Row>,
}

struct Row {
    cells: Vec<String>,
    below: Vec<String>,
}

impl Table {
    pub(crate) fn new(header: &[&str]) -> Table {
        let cells = header.iter().map(|cell| (*cell).to_owned()).collect();
        Table { rows: vec![Row { cells, below: Vec::new() }] }
    }

    /// For rows that go on with a table that was shown before.
    pub(crate) fn without_header() -> Table {
        Table { rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>, below: Vec<String>) {
        self.rows.push(Row { cells, below });
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.cells.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, cell) in row.cells.iter().enumerate() {
                line.push_str(&format!("{cell:width$}  ", width = self.width(column)));
            }
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{}", line.trim_end())?;
            row.below.iter().try_for_each(|line| write!(f, "\n    {line}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["NAME", "STATUS"]);
        table.row(vec!["größe".into(), "failed".into()], vec!["because".into()]);
        table.row(vec!["a".into(), String::new()], Vec::new());
        assert_eq!(table.to_string(), "NAME   STATUS\ngröße  failed\n    because\na");
    }
}
