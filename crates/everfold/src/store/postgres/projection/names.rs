//! Names of schemas and tables, and text as SQL.

/// Longest name in PostgreSQL.
const NAME_BYTES_MAX: usize = 63;

/// The schema of a generation's tables and functions.
pub(in crate::store::postgres) fn home(id: i32, name: &str) -> String {
    let mut home = format!("everfold_{id}_{name}");
    home.truncate(NAME_BYTES_MAX);
    home
}

/// The schema of a snapshot's tables.
pub(in crate::store::postgres) fn snapshot_home(id: i32, name: &str) -> String {
    let mut home = format!("everfold_snapshot_{id}_{name}");
    home.truncate(NAME_BYTES_MAX);
    home
}

/// The view of a table as it was at a position.
pub(in crate::store::postgres) fn at_position(table: &str, position: crate::Position) -> String {
    let end = format!("_at_{position}");
    let table: String = table.chars().take(NAME_BYTES_MAX - end.len()).collect();
    format!("{table}{end}")
}

/// The schema where readers of a namespace find their views.
pub(in crate::store::postgres) fn readers(namespace: &str) -> String {
    match namespace {
        "" => "read_model".to_owned(),
        namespace => format!("read_model_{namespace}"),
    }
}

/// A name, whatever is in it.
pub(in crate::store::postgres) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A table with its schema.
pub(in crate::store::postgres) fn table(schema: &str, name: &str) -> String {
    format!("{}.{}", quoted(schema), quoted(name))
}

/// A text, whatever is in it and however the server reads backslashes.
pub(in crate::store::postgres) fn literal(text: &str) -> String {
    let text = text.replace('\'', "''");
    match text.contains('\\') {
        true => format!(" E'{}'", text.replace('\\', "\\\\")),
        false => format!("'{text}'"),
    }
}

/// Texts as an array.
pub(in crate::store::postgres) fn literals<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let texts: Vec<String> = texts.into_iter().map(literal).collect();
    format!("ARRAY[{}]::pg_catalog.text[]", texts.join(", "))
}

/// A path into JSON as an array: `customer.city`.
pub(in crate::store::postgres) fn path(path: &str) -> String {
    literals(path.split('.'))
}

/// A body of a function between dollar signs, with a tag that does not occur in it.
pub(in crate::store::postgres) fn dollar_quoted(body: &str) -> String {
    let mut tag = "$everfold$".to_owned();
    let mut number = 0;
    while body.contains(&tag) {
        number += 1;
        tag = format!("$everfold_{number}$");
    }
    format!("{tag}{body}{tag}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_breaks_out_of_its_quotes() {
        assert_eq!(quoted("a\"; DROP TABLE x; --"), "\"a\"\"; DROP TABLE x; --\"");
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal("a\\' OR 1"), " E'a\\\\'' OR 1'");
        assert_eq!(dollar_quoted("$everfold$ x"), "$everfold_1$$everfold$ x$everfold_1$");
    }

    #[test]
    fn home_fits_the_limit() {
        let home = home(i32::MAX, &"x".repeat(40));
        assert!(home.len() <= NAME_BYTES_MAX && home.starts_with("everfold_2147483647_x"));
    }
}
