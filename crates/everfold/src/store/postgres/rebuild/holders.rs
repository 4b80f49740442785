//! Who holds a gate: appends whose transactions have not ended.

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::error::StoreError;
use crate::store::GateHolder;
use crate::store::postgres::connect::{Connections, Param};

const FIND: &str = include_str!("../../../../sql/postgres/statements/find_gate_holders.sql");

/// Most of a query that is shown.
const QUERY_CHARS: usize = 80;

/// Transactions that hold one of these generations' gates right now; 0 stands for the registry gate.
pub(super) async fn gate_holders(
    connections: &Connections,
    generations: &[i32],
) -> Result<Vec<GateHolder>, StoreError> {
    let params: [Param<'_>; 1] = [(&generations, Type::INT4_ARRAY)];
    let rows = connections.get().await?.query(FIND, &params).await?;
    Ok(rows.iter().map(holder).collect())
}

/// What this role may not see of another's session is left out.
fn holder(row: &Row) -> GateHolder {
    let transaction: String = row.get(0);
    let (pid, prepared): (Option<i32>, Option<String>) = (row.get(1), row.get(2));
    let mut said = match (pid, prepared) {
        (Some(pid), _) => format!("process {pid}"),
        (None, Some(name)) => format!("prepared transaction '{name}'"),
        (None, None) => "a prepared transaction".to_owned(),
    };
    let (user, application): (Option<String>, Option<String>) = (row.get(3), row.get(4));
    for (word, value) in [("user", user), ("application", application)] {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            said.push_str(&format!(", {word} {value}"));
        }
    }
    if let Some(seconds) = row.get::<_, Option<f64>>(5) {
        said.push_str(&format!(", in a transaction for {seconds:.1} s"));
    }
    let (state, query): (Option<String>, Option<String>) = (row.get(6), row.get(7));
    if let Some(state) = state {
        said.push_str(&format!(", {state}"));
    }
    if let Some(query) = query.filter(|query| !query.is_empty()) {
        let query: String = query.split_whitespace().collect::<Vec<_>>().join(" ");
        let short: String = query.chars().take(QUERY_CHARS).collect();
        let more = if short.len() < query.len() { "…" } else { "" };
        said.push_str(&format!(": {short}{more}"));
    }
    GateHolder { transaction, is_prepared: pid.is_none(), description: said }
}
