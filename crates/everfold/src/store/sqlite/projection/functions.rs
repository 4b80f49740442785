//! SQL functions that the engine brings along on the connection that writes.

use std::sync::Arc;

use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::{Connection, Error};

use crate::projection::key::{Key, KeyField, shard_of};

/// Registers `everfold_in_shard(fields, shards, shard, position, stream_id, type, data, metadata)`:
/// whether an event belongs to a shard. The key is the one that Rust computes, because it is Rust
/// that computes it. An event without a key belongs to the shard of the empty key, which refuses it.
pub(in crate::store::sqlite) fn register(connection: &Connection) -> Result<(), Error> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    connection.create_scalar_function("everfold_in_shard", 8, flags, in_shard)
}

fn in_shard(context: &Context<'_>) -> Result<bool, Error> {
    let key: Arc<Key> = context.get_or_create_aux(0, |fields| -> Result<Key, KeyUnknown> {
        let fields = fields.as_str_or_null().map_err(|error| KeyUnknown(error.to_string()))?;
        let fields: Option<Vec<String>> = fields
            .map(serde_json::from_str)
            .transpose()
            .map_err(|error| KeyUnknown(error.to_string()))?;
        Key::from_stored(fields.as_deref()).map_err(KeyUnknown)
    })?;
    let (shards, shard): (u32, u32) = (context.get(1)?, context.get(2)?);
    let text = |index: usize| {
        context.get_raw(index).as_str().map_err(|e| Error::UserFunctionError(e.into()))
    };
    let [stream_id, event_type, data, metadata] = [text(4)?, text(5)?, text(6)?, text(7)?];
    match key.of_parts(stream_id, event_type, data, metadata) {
        Some(key) => Ok(shard_of(&key, shards) == shard),
        None if shard_of("", shards) == shard => {
            let position: i64 = context.get(3)?;
            let message = format!("event {position}: {}", key_is_missing(&key));
            Err(Error::UserFunctionError(message.into()))
        }
        None => Ok(false),
    }
}

/// What is wrong with an event that has no key.
pub(super) fn key_is_missing(key: &Key) -> String {
    let fields = match key {
        Key::Fields(fields) => {
            fields.iter().map(KeyField::to_string).collect::<Vec<_>>().join(", ")
        }
        Key::Stream | Key::Code => "stream_id".to_owned(),
    };
    format!("key field {fields} is missing or null")
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct KeyUnknown(String);

#[cfg(test)]
mod tests {
    use super::*;

    const IN_SHARD: &str = "SELECT everfold_in_shard(?1, ?2, ?3, 7, ?4, 'T', ?5, '{\"m\":\"x\"}')";

    fn connection() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        register(&connection).unwrap();
        connection
    }

    /// The shards that take an event, or what was said instead.
    fn shards(
        connection: &Connection,
        fields: Option<&str>,
        data: &str,
    ) -> Result<Vec<u32>, String> {
        let mut found = Vec::new();
        for shard in 0..5 {
            let params = (fields, 5, shard, "stream-ü", data);
            let is_in = connection.query_row(IN_SHARD, params, |row| row.get(0));
            if is_in.map_err(|error| error.to_string())? {
                found.push(shard);
            }
        }
        Ok(found)
    }

    #[test]
    fn every_event_is_in_the_one_shard_of_its_key() {
        let connection = connection();
        let values = [
            "\"plain\"",
            "\"with \\\"quotes\\\" and \\u00fc 😀\"",
            "\"\"",
            "0",
            "-0",
            "1.0",
            "1e2",
            "12345678901234567890",
            "0.1",
            "true",
            "false",
            "[1, 2]",
            "{\"b\": 1, \"a\": null}",
        ];
        for value in values {
            let data = format!("{{\"k\": {value}, \"deep\": {{\"k\": {value}}}}}");
            for fields in [
                None,
                Some(r#"["data.k"]"#),
                Some(r#"["data.deep.k"]"#),
                Some(r#"["data.k", "metadata.m", "stream_id", "type"]"#),
            ] {
                let stored: Option<Vec<String>> =
                    fields.map(|fields| serde_json::from_str(fields).unwrap());
                let key = Key::from_stored(stored.as_deref()).unwrap();
                let key = key.of_parts("stream-ü", "T", &data, "{\"m\":\"x\"}").unwrap();
                let wanted = vec![shard_of(&key, 5)];
                assert_eq!(shards(&connection, fields, &data), Ok(wanted), "{fields:?} {data}");
            }
        }
    }

    #[test]
    fn event_without_a_key_is_refused_by_one_shard_and_not_lost_in_the_others() {
        let connection = connection();
        for data in ["{}", "{\"k\": null}", "[]", "1"] {
            let mut refusing = 0;
            for shard in 0..5 {
                let params = (r#"["data.k"]"#, 5, shard, "s", data);
                match connection.query_row(IN_SHARD, params, |row| row.get::<_, bool>(0)) {
                    Ok(taken) => assert!(!taken),
                    Err(error) => {
                        let said = error.to_string();
                        assert!(
                            said.contains("event 7: key field data.k is missing or null"),
                            "{said}"
                        );
                        refusing += 1;
                    }
                }
            }
            assert_eq!(refusing, 1, "{data}");
        }
    }
}
