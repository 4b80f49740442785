//! Databases for tests of projections, and queries in them.

use std::error::Error;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use tokio_postgres::Client;

use super::target::Target;

/// Makes an empty database on the server of a URL, and returns its URL.
pub(crate) async fn create_database(server: &str, name: &str) -> Result<String, String> {
    // Nobody is ever connected to template0, so that tests do not get in each other's way.
    let statement = format!("CREATE DATABASE {name} TEMPLATE template0");
    let failed = |error: tokio_postgres::Error| {
        format!("a database for the test cannot be made beside the one named: {}", said(error))
    };
    connect(server).await?.batch_execute(&statement).await.map_err(failed)?;
    let url = with_database(server, name);
    match connect_to_scratch(&url, name).await {
        Ok(_) => Ok(url),
        Err(error) => {
            drop_database(server, name).await?;
            Err(error)
        }
    }
}

/// Connects to a database that was made for a test, and to no other: a pooler, or something in the URL,
/// may lead elsewhere, and what is there is not ours to change.
async fn connect_to_scratch(url: &str, name: &str) -> Result<Client, String> {
    let client = connect(url).await?;
    let here = client.query_one("SELECT current_database()::text", &[]).await.map_err(said)?;
    let here: String = here.get(0);
    match here == name {
        true => Ok(client),
        false => Err(format!(
            "the URL leads to the database {here} and not to the one that was made for the test; nothing \
             was done there: name a server directly, without a pooler"
        )),
    }
}

/// Drops it, whoever is connected.
pub(crate) async fn drop_database(server: &str, name: &str) -> Result<(), String> {
    let statement = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
    connect(server).await?.batch_execute(&statement).await.map_err(said)
}

/// Drops everything in a database of a test, and ends whoever is still connected.
pub(crate) async fn drop_schemas(url: &str, name: &str) -> Result<(), String> {
    let ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND usename = current_user";
    let schemas = "SELECT string_agg(format('DROP SCHEMA %I CASCADE;', nspname), ' ') \
        FROM pg_namespace WHERE nspname <> 'information_schema' AND nspname <> 'public' \
        AND nspname NOT LIKE 'pg\\_%'";
    let client = connect_to_scratch(url, name).await?;
    client.batch_execute(ended).await.map_err(said)?;
    let drops: Option<String> = client.query_one(schemas, &[]).await.map_err(said)?.get(0);
    client.batch_execute(&drops.unwrap_or_default()).await.map_err(said)
}

/// The rows of a query as JSON, columns in their order.
pub(crate) async fn query_rows(url: &str, query: &str) -> Result<Vec<Vec<Value>>, String> {
    let client = connect(url).await?;
    let query = format!("SELECT row_to_json(q)::text FROM (\n{query}\n) AS q");
    let rows = client.query(&query, &[]).await.map_err(said)?;
    rows.iter().map(|row| columns(row.get(0))).collect()
}

/// The rows of a table of the read model, these columns of them.
pub(crate) async fn table_rows(
    url: &str,
    table: &str,
    columns: &[String],
) -> Result<Vec<Vec<Value>>, String> {
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    let selected: Vec<String> = columns.iter().map(|column| quoted(column)).collect();
    let selected = if selected.is_empty() { "1".to_owned() } else { selected.join(", ") };
    let query = format!("SELECT {selected} FROM read_model.{}", quoted(table));
    let mut rows = query_rows(url, &query).await?;
    rows.iter_mut().for_each(|row| row.truncate(columns.len()));
    Ok(rows)
}

/// The columns of a table of the read model, in their order.
pub(crate) async fn table_columns(url: &str, table: &str) -> Result<Vec<String>, String> {
    let query = "SELECT column_name::text FROM information_schema.columns \
        WHERE table_schema = 'read_model' AND table_name = $1 ORDER BY ordinal_position";
    let rows = connect(url).await?.query(query, &[&table]).await.map_err(said)?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

async fn connect(url: &str) -> Result<Client, String> {
    let target = Target::parse(url).map_err(|error| error.to_string())?;
    let unreachable = |error| format!("the server cannot be reached: {}", said(error));
    let (client, connection) = target.connect().await.map_err(unreachable)?;
    tokio::spawn(connection);
    Ok(client)
}

/// What the server says, or else the driver with its cause.
fn said(error: tokio_postgres::Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(error), _) => error.message().to_owned(),
        (None, Some(cause)) => format!("{error}: {cause}"),
        (None, None) => error.to_string(),
    }
}

/// The values of a JSON object in the order in which they stand there.
fn columns(object: &str) -> Result<Vec<Value>, String> {
    struct Columns;

    impl<'de> Visitor<'de> for Columns {
        type Value = Vec<Value>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Vec<Value>, M::Error> {
            let mut values = Vec::new();
            while let Some((_, value)) = map.next_entry::<serde::de::IgnoredAny, Value>()? {
                values.push(value);
            }
            Ok(values)
        }
    }

    let mut json = serde_json::Deserializer::from_str(object);
    json.deserialize_map(Columns).map_err(|error| error.to_string())
}

/// The URL of another database on the same server.
fn with_database(url: &str, name: &str) -> String {
    let (base, query) = url.split_once('?').map_or((url, None), |(base, q)| (base, Some(q)));
    let host = base.find("://").map_or(0, |at| at + 3);
    let end = base[host..].find('/').map_or(base.len(), |at| host + at);
    // A database among the parameters would come before the one in the path.
    let query = query.unwrap_or_default().split('&');
    let rest: Vec<&str> = query.filter(|p| !p.is_empty() && !p.starts_with("dbname=")).collect();
    match rest.is_empty() {
        false => format!("{}/{name}?{}", &base[..end], rest.join("&")),
        true => format!("{}/{name}", &base[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn database_of_a_url_is_replaced() {
        for (url, wanted) in [
            ("postgres://u:p@h:5/db", "postgres://u:p@h:5/other"),
            ("postgres://h", "postgres://h/other"),
            ("postgres://u@h/db?sslmode=require", "postgres://u@h/other?sslmode=require"),
            ("postgres:///db?host=/tmp/s", "postgres:///other?host=/tmp/s"),
            ("postgres://u@h?dbname=shop", "postgres://u@h/other"),
            (
                "postgres://h/a?sslmode=require&dbname=b&x=1",
                "postgres://h/other?sslmode=require&x=1",
            ),
        ] {
            assert_eq!(with_database(url, "other"), wanted);
        }
    }

    #[test]
    fn columns_keep_their_order() {
        let found = columns(r#"{"b":1,"a":"x","c":null}"#).unwrap();
        assert_eq!(found, [Value::from(1), Value::from("x"), Value::Null]);
    }
}
