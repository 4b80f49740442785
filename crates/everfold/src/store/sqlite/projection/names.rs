//! Names and texts inside SQL, and what the tables of a generation are called.

/// A name in quotes, whatever it holds.
pub(in crate::store::sqlite) fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text in quotes, whatever it holds.
pub(in crate::store::sqlite) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// The prefix of the tables and indexes of a generation.
pub(in crate::store::sqlite) fn home(generation: i32) -> String {
    format!("g{generation}_")
}

/// The view that readers use.
pub(in crate::store::sqlite) fn view(namespace: &str, table: &str) -> String {
    match namespace {
        "" => format!("read_model_{table}"),
        namespace => format!("read_model_{namespace}_{table}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_gets_out_of_its_quotes() {
        assert_eq!(identifier("a\"; DROP TABLE b; --"), "\"a\"\"; DROP TABLE b; --\"");
        assert_eq!(literal("it's"), "'it''s'");
    }
}
