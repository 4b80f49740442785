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
