//! The raw limit on PostgreSQL: a bare client and `raw.sql`.

use std::borrow::Borrow;
use std::pin::pin;

use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use crate::drive::Append;
use crate::server::Database;
use crate::wire::{Json, Microseconds};
use crate::workload::{APPENDED_TYPE, Event, new_data, new_stream};

const APPEND_EVENT: &str = "SELECT raw.append_event($1, $2, $3, $4, $5, $6, $7)";
const APPEND_EVENTS: &str = "SELECT raw.append_events($1, $2, $3, $4, $5, $6, $7)";

/// One prepared call for each append, in a transaction of its own; a connection a writer.
pub(crate) struct RawAppend {
    writers: Vec<(Client, Statement)>,
    events: usize,
}

impl RawAppend {
    pub(crate) async fn connect(
        database: &Database,
        writers: usize,
        events: usize,
    ) -> anyhow::Result<RawAppend> {
        let sql = if events == 1 { APPEND_EVENT } else { APPEND_EVENTS };
        let mut connected = Vec::new();
        for _ in 0..writers {
            let client = database.connect().await?;
            let statement = client.prepare(sql).await?;
            connected.push((client, statement));
        }
        Ok(RawAppend { writers: connected, events })
    }
}

impl Append for RawAppend {
    fn events(&self) -> usize {
        self.events
    }

    async fn append(&self, writer: usize) -> anyhow::Result<()> {
        let (client, statement) = &self.writers[writer];
        let stream = new_stream();
        let row = if self.events == 1 {
            let data = new_data();
            let params: [&(dyn ToSql + Sync); 7] = [
                &stream,
                &0_i64,
                &APPENDED_TYPE,
                &Json(&data),
                &Json("{}"),
                &Uuid::now_v7(),
                &1_i32,
            ];
            client.query_one(statement, &params).await?
        } else {
            let data: Vec<String> = (0..self.events).map(|_| new_data()).collect();
            let json: Vec<Json<'_>> = data.iter().map(|data| Json(data)).collect();
            let metadata: Vec<Json<'_>> = data.iter().map(|_| Json("{}")).collect();
            let ids: Vec<Uuid> = data.iter().map(|_| Uuid::now_v7()).collect();
            let types = vec![APPENDED_TYPE; self.events];
            let schema_versions = vec![1_i32; self.events];
            let params: [&(dyn ToSql + Sync); 7] =
                [&stream, &0_i64, &types, &json, &metadata, &ids, &schema_versions];
            client.query_one(statement, &params).await?
        };
        anyhow::ensure!(row.get::<_, i64>(0) > 0, "no position came back");
        Ok(())
    }
}

const COPY_COLUMNS: [Type; 8] = [
    Type::TEXT,
    Type::INT8,
    Type::TEXT,
    Type::INT4,
    Type::JSONB,
    Type::JSONB,
    Type::UUID,
    Type::TIMESTAMPTZ,
];

/// One binary COPY of all events, positions drawn by the table.
pub(crate) async fn copy(
    client: &Client,
    table: &str,
    events: impl IntoIterator<Item = impl Borrow<Event>>,
) -> anyhow::Result<u64> {
    let sql = format!(
        "COPY {table} (stream_id, version, type, schema_version, data, metadata, id, recorded_at) \
         FROM STDIN (FORMAT binary)"
    );
    let sink = client.copy_in(&sql).await?;
    let mut writer = pin!(BinaryCopyInWriter::new(sink, &COPY_COLUMNS));
    for event in events {
        let event = event.borrow();
        let row: [&(dyn ToSql + Sync); 8] = [
            &event.stream_id,
            &event.version,
            &event.event_type,
            &1_i32,
            &Json(&event.data),
            &Json(&event.metadata),
            &event.id,
            &Microseconds(event.recorded_at_since_2000()),
        ];
        writer.as_mut().write(&row).await?;
    }
    Ok(writer.as_mut().finish().await?)
}
