//! Dead rows that are not removed, and transaction numbers that run out.

use tokio_postgres::Row;

use crate::diagnosis::Finding;
use crate::error::StoreError;
use crate::store::postgres::connect::Connection;

const DESCRIBE: &str = statement!("describe_vacuum");
const TABLES: &str = statement!("list_unvacuumed_tables");

/// There are about two billion transaction numbers.
const NUMBERS: i64 = 1 << 31;
/// Autovacuum begins at a tenth of them; at this age it does not get through.
const AGE_WARN: i64 = 1_000_000_000;
/// The server itself gives up all else for it at this age (`vacuum_failsafe_age`).
const AGE_PROBLEM: i64 = 1_600_000_000;

pub(super) async fn findings(connection: &Connection) -> Result<Vec<Finding>, StoreError> {
    let row = connection.query_one(DESCRIBE, &[]).await?;
    let tables = connection.query(TABLES, &[]).await?;
    let mut findings: Vec<Finding> = tables.iter().map(table).collect();
    if findings.is_empty() {
        findings.push(Finding::ok("vacuum", "dead rows are removed"));
    }
    findings.push(wraparound(row.get::<_, i64>(0).max(row.get(1))));
    Ok(findings)
}

fn table(row: &Row) -> Finding {
    let name: &str = row.get(0);
    let (live, dead): (i64, i64) = (row.get(1), row.get(2));
    let last = match row.get::<_, Option<f64>>(3) {
        Some(seconds) => format!("vacuumed {seconds:.0} s ago"),
        None => "never vacuumed".to_owned(),
    };
    let rows = format!("{name} has about {dead} dead rows and {live} live ones, {last}");
    if row.get(4) {
        return Finding::warning(
            "vacuum",
            format!("{rows}: autovacuum is off for it"),
            format!("ALTER TABLE {name} RESET (autovacuum_enabled); VACUUM (ANALYZE) {name}"),
        );
    }
    let hint = format!(
        "VACUUM (ANALYZE, VERBOSE) {name}; if it cannot remove them, see `transactions`, `prepared \
         transactions` and `replication slots` here"
    );
    Finding::warning("vacuum", rows, hint)
}

fn wraparound(age: i64) -> Finding {
    let message = format!("the oldest transaction number is {age} old, of {NUMBERS}");
    if age < AGE_WARN {
        return Finding::ok("wraparound", message);
    }
    let message = format!("{message}; at the end the server takes no more appends");
    let hint = "end what keeps vacuum back (`transactions`, `prepared transactions`, `replication \
        slots` here), then `vacuumdb --all`";
    match age < AGE_PROBLEM {
        true => Finding::warning("wraparound", message, hint),
        false => Finding::problem("wraparound", message, hint),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::Severity;

    #[test]
    fn running_out_of_transaction_numbers_is_told_before_the_server_stops() {
        assert_eq!(wraparound(200_000_000).severity, Severity::Ok);
        assert_eq!(wraparound(1_000_000_000).severity, Severity::Warning);
        assert_eq!(wraparound(1_600_000_000).severity, Severity::Problem);
        assert!(wraparound(1_600_000_000).hint.unwrap().contains("vacuumdb --all"));
    }
}
