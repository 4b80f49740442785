//! Whether the log is shorter than it was: restored in part, or taken over from a server that had less.

use tokio_postgres::Row;

use crate::diagnosis::{Finding, LostPosition, log_findings};
use crate::error::StoreError;
use crate::store::postgres::connect::Connection;

const END: &str = statement!("read_log_end");
const LOST: &str = statement!("find_lost_positions");

/// So many positions at the end that have no event are more than appends that were rolled back leave.
const GAP_WARN: i64 = 1_000;

/// With `quiet`, no append is in flight.
pub(super) async fn findings(
    connection: &Connection,
    quiet: bool,
) -> Result<Vec<Finding>, StoreError> {
    let lost = |row: &Row| LostPosition {
        projection: row.get(0),
        place: format!("everfold.{}", row.get::<_, &str>(1)),
        position: row.get(2),
    };
    let lost: Vec<LostPosition> = connection.query(LOST, &[]).await?.iter().map(lost).collect();
    let end = connection.query_one(END, &[]).await?;
    let (last, handed_out): (i64, Option<i64>) = (end.get(0), end.get(1));
    let gap = handed_out.map_or(0, |handed_out| handed_out - last);
    let gap = if quiet && gap >= GAP_WARN { gap } else { 0 };
    let mut findings = log_findings(last, &lost, gap);
    findings.extend(published(last, end.get(2)));
    Ok(findings)
}

/// Standbys take what is at or below the published mark for decided.
fn published(last: i64, mark: Option<i64>) -> Option<Finding> {
    let mark = mark.filter(|mark| *mark > last)?;
    let message = format!(
        "it ends at position {last}, and the mark that was published for standbys is {mark}: readers \
         there would miss the events that get the positions between"
    );
    let hint = "stop readers on standbys; DELETE FROM everfold.published_mark; set their positions back \
        to SELECT everfold.high_water_mark()";
    Some(Finding::problem("log", message, hint))
}
