//! What somebody would write who has one log and one read model, and no failures.

use std::collections::BTreeMap;

use futures::TryStreamExt;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use crate::carts::{self, Cart};
use crate::wire::{Json, JsonBytes};
use crate::workload::ShopEvent;

const EVENTS: &str =
    "SELECT position, stream_id, version, type, data FROM everfold.events ORDER BY position";

/// The statement of the SQL projection, one transaction a batch.
pub(super) async fn rows(
    client: &Client,
    table: &str,
    events: u64,
    batch_events: u64,
) -> anyhow::Result<()> {
    let sql = format!(
        "WITH batch AS (SELECT position, stream_id, version, type, schema_version, data, metadata, id, \
         recorded_at FROM everfold.events WHERE position > $1 AND position <= $2 ORDER BY position) {}",
        carts::apply(table)
    );
    let statement = client.prepare(&sql).await?;
    let (mut after, events) = (0_i64, events.cast_signed());
    while after < events {
        let up_to = (after + batch_events.cast_signed()).min(events);
        client.execute(&statement, &[&after, &up_to]).await?;
        after = up_to;
    }
    Ok(())
}

pub(super) fn create_documents(table: &str) -> String {
    format!(
        "CREATE TABLE {table} (key text COLLATE \"C\" PRIMARY KEY, document jsonb NOT NULL, \
         position bigint NOT NULL, stream_version bigint NOT NULL)"
    )
}

/// Streams the log on one connection; on another, loads the documents of each batch and writes them.
pub(super) async fn documents(
    reader: &Client,
    writer: &Client,
    table: &str,
    batch_events: usize,
) -> anyhow::Result<()> {
    let documents = Documents::prepare(writer, table).await?;
    let no_parameters: [&str; 0] = [];
    let mut rows = std::pin::pin!(reader.query_raw(EVENTS, no_parameters).await?);
    let mut batch = Vec::with_capacity(batch_events);
    while let Some(row) = rows.try_next().await? {
        let event = decode(row.try_get(3)?, row.try_get::<_, JsonBytes<'_>>(4)?.json())?;
        batch.push(Event {
            position: row.try_get(0)?,
            stream_id: row.try_get(1)?,
            version: row.try_get(2)?,
            event,
        });
        if batch.len() == batch_events {
            documents.apply(&batch).await?;
            batch.clear();
        }
    }
    documents.apply(&batch).await
}

struct Event {
    position: i64,
    stream_id: String,
    version: i64,
    event: ShopEvent,
}

pub(crate) fn decode(event_type: &str, data: &[u8]) -> anyhow::Result<ShopEvent> {
    let mut tagged = Vec::with_capacity(data.len() + event_type.len() + 5);
    tagged.extend_from_slice(b"{\"");
    tagged.extend_from_slice(event_type.as_bytes());
    tagged.extend_from_slice(b"\":");
    tagged.extend_from_slice(data);
    tagged.push(b'}');
    Ok(serde_json::from_slice(&tagged)?)
}

struct Documents<'a> {
    client: &'a Client,
    load: Statement,
    upsert: Statement,
}

impl<'a> Documents<'a> {
    async fn prepare(client: &'a Client, table: &str) -> anyhow::Result<Documents<'a>> {
        let load = format!("SELECT key, document FROM {table} WHERE key = ANY ($1)");
        let upsert = format!(
            "INSERT INTO {table} (key, document, position, stream_version) \
             SELECT * FROM unnest($1::text[], $2::jsonb[], $3::bigint[], $4::bigint[]) \
             ON CONFLICT (key) DO UPDATE SET document = EXCLUDED.document, \
                 position = EXCLUDED.position, stream_version = EXCLUDED.stream_version"
        );
        let (load, upsert) = (client.prepare(&load).await?, client.prepare(&upsert).await?);
        Ok(Documents { client, load, upsert })
    }

    async fn apply(&self, events: &[Event]) -> anyhow::Result<()> {
        let mut carts: BTreeMap<&str, (Option<Cart>, i64, i64)> =
            events.iter().map(|event| (event.stream_id.as_str(), (None, 0, 0))).collect();
        let keys: Vec<&str> = carts.keys().copied().collect();
        for row in self.client.query(&self.load, &[&keys]).await? {
            let document = serde_json::from_slice(row.try_get::<_, JsonBytes<'_>>(1)?.json())?;
            if let Some(cart) = carts.get_mut(row.try_get::<_, &str>(0)?) {
                cart.0 = Some(document);
            }
        }
        for event in events {
            if let Some((cart, position, version)) = carts.get_mut(event.stream_id.as_str()) {
                *cart = Some(Cart::after(cart.take(), &event.event));
                (*position, *version) = (event.position, event.version);
            }
        }
        let mut documents = Vec::with_capacity(carts.len());
        let (mut positions, mut versions) = (Vec::new(), Vec::new());
        for (cart, position, version) in carts.values() {
            documents.push(serde_json::to_string(cart)?);
            positions.push(*position);
            versions.push(*version);
        }
        let documents: Vec<Json<'_>> = documents.iter().map(|json| Json(json)).collect();
        let params: [&(dyn ToSql + Sync); 4] = [&keys, &documents, &positions, &versions];
        self.client.execute(&self.upsert, &params).await?;
        Ok(())
    }
}
