//! A read model that shows every event lost, doubled or out of order: for each account the positions
//! of its events, in the order in which they were applied.

use std::collections::BTreeMap;

use everfold::{
    ExpectedVersion, NewEvent, Position, Projection, ProjectionBuilder, ProjectionSettings,
    SqlBody, Store, StreamAppend,
};

use crate::fixture::Place;

pub(crate) const STREAMS: u64 = 8;
pub(crate) const ACCOUNTS: u64 = 5;

pub(crate) const CREATE: &str =
    "CREATE TABLE read_model.chains (account TEXT PRIMARY KEY, chain TEXT NOT NULL)";
pub(crate) const APPLY: &str = "INSERT INTO read_model.chains AS c (account, chain)
    SELECT data->>'account', group_concat(position, ',' ORDER BY position)
      FROM batch WHERE true GROUP BY data->>'account'
    ON CONFLICT (account) DO UPDATE SET chain = c.chain || ',' || EXCLUDED.chain";

/// For each account, across streams, the positions of its events in the order of application.
pub(crate) fn chains() -> ProjectionBuilder<SqlBody> {
    let mut settings = ProjectionSettings::default();
    settings.batch_events = 7;
    Projection::sql("chains", 1)
        .create(CREATE)
        .apply(APPLY)
        .events(["Moved"])
        .key_fields(["data.account"])
        .settings(settings)
}

pub(crate) fn moved(number: u64) -> NewEvent {
    let data = serde_json::json!({ "account": format!("a-{}", number % ACCOUNTS) });
    NewEvent::new("Moved", &data).unwrap()
}

pub(crate) fn stream(number: u64) -> String {
    format!("s-{}", number % STREAMS)
}

pub(crate) fn events(number: u64) -> [NewEvent; 3] {
    [moved(number), NewEvent::from_json("Other", "{}").unwrap(), moved(number + 1)]
}

pub(crate) fn append_of(number: u64) -> StreamAppend {
    StreamAppend::new(stream(number), ExpectedVersion::Any, events(number))
}

pub(crate) async fn fill(store: &Store, appends: u64) -> Position {
    let all: Vec<StreamAppend> = (0..appends).map(append_of).collect();
    let outcomes = store.append_many(all).await.unwrap();
    outcomes.into_iter().map(|outcome| outcome.unwrap().last_position).max().unwrap()
}

/// What the log says.
pub(crate) async fn folded(store: &Store) -> BTreeMap<String, String> {
    let mut chains: BTreeMap<String, String> = BTreeMap::new();
    for event in store.read_all().types(["Moved"]).collect().await.unwrap() {
        let data: serde_json::Value = event.data_as().unwrap();
        let chain = chains.entry(data["account"].as_str().unwrap().to_owned()).or_default();
        if !chain.is_empty() {
            chain.push(',');
        }
        chain.push_str(&event.position.to_string());
    }
    chains
}

/// What readers see.
pub(crate) fn shown(place: &Place) -> BTreeMap<String, String> {
    let connection = place.connect();
    let mut statement = connection.prepare("SELECT account, chain FROM read_model_chains").unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.map(Result::unwrap).collect()
}
