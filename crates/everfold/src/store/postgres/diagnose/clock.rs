//! The server's clock, against the one of this machine and against the log.

use jiff::Timestamp;

use crate::diagnosis::{Finding, newest_event};
use crate::error::StoreError;
use crate::store::postgres::connect::Connection;
use crate::store::postgres::types::Time;

const READ: &str = statement!("read_clock");

/// Clocks that are kept by NTP differ by far less.
const SKEW_SECONDS: f64 = 5.0;

pub(super) async fn findings(connection: &Connection) -> Result<Vec<Finding>, StoreError> {
    // A clock of ours: this is what is compared, and decides nothing.
    let before = Timestamp::now();
    let row = connection.query_one(READ, &[]).await?;
    let after = Timestamp::now();
    let now = row.get::<_, Time>(0).0;
    let newest = row
        .get::<_, Option<i64>>(1)
        .zip(row.get::<_, Option<Time>>(2))
        .map(|(position, time)| (position, time.0));
    let mut findings = vec![skew(seconds(before, now), seconds(after, now))];
    findings.extend(newest.and_then(|(position, time)| newest_event(position, time, now)));
    Ok(findings)
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}

/// The server's clock was read between two moments of ours; it is `first` seconds after the earlier
/// one, and `last` after the later one.
fn skew(first: f64, last: f64) -> Finding {
    let ahead = if last > 0.0 { last } else { first.min(0.0) };
    if ahead.abs() < SKEW_SECONDS {
        return Finding::ok("clock", "the server's clock is that of this machine");
    }
    let (seconds, side) = (ahead.abs(), if ahead > 0.0 { "ahead of" } else { "behind" });
    Finding::warning(
        "clock",
        format!("the server's clock is {seconds:.0} s {side} this machine's"),
        "`timedatectl` on both machines; times of events and leases are the server's, so nothing is \
         lost, but ages that clients work out are wrong",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::Severity;

    #[test]
    fn clock_that_is_off_is_told_and_a_slow_answer_is_not() {
        assert_eq!(skew(0.1, -0.1).severity, Severity::Ok);
        assert_eq!(skew(9.0, -9.0).severity, Severity::Ok, "it took 18 s to answer");
        let ahead = skew(60.2, 60.0);
        assert_eq!(ahead.severity, Severity::Warning);
        assert_eq!(ahead.message, "the server's clock is 60 s ahead of this machine's");
        let behind = skew(-30.0, -30.2);
        assert_eq!(behind.message, "the server's clock is 30 s behind this machine's");
    }
}
