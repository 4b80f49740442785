//! Compares what a reader saw with what is stored. Knows nothing of how either came about.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use crate::session::Session;

/// What a reader did to the events it should have seen.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Comparison {
    /// Stored, never seen.
    pub(crate) missed: Vec<i64>,
    /// Seen more than once.
    pub(crate) doubled: Vec<i64>,
    /// Seen, not stored.
    pub(crate) invented: Vec<i64>,
    /// Seen after a higher position.
    pub(crate) out_of_order: usize,
}

impl Comparison {
    pub(crate) fn is_exact(&self) -> bool {
        *self == Comparison::default()
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (missed, doubled) = (self.missed.len(), self.doubled.len());
        let (invented, out_of_order) = (self.invented.len(), self.out_of_order);
        write!(
            f,
            "missed {missed}, doubled {doubled}, invented {invented}, out of order {out_of_order}"
        )
    }
}

pub(crate) fn compare(stored: &[i64], seen: &[i64]) -> Comparison {
    let stored: BTreeSet<i64> = stored.iter().copied().collect();
    let mut once = BTreeSet::new();
    let doubled = seen.iter().copied().filter(|&position| !once.insert(position)).collect();
    Comparison {
        missed: stored.difference(&once).copied().collect(),
        doubled,
        invented: once.difference(&stored).copied().collect(),
        out_of_order: seen.windows(2).filter(|pair| pair[1] < pair[0]).count(),
    }
}

/// Positions by key, in the order in which they were stored or applied.
pub(crate) type ByKey = BTreeMap<String, Vec<i64>>;

/// The same for each key on its own, added up.
pub(crate) fn compare_keys(stored: &ByKey, seen: &ByKey) -> Comparison {
    let keys: BTreeSet<&String> = stored.keys().chain(seen.keys()).collect();
    let mut sum = Comparison::default();
    for key in keys {
        let of = |side: &ByKey| side.get(key).cloned().unwrap_or_default();
        let one = compare(&of(stored), &of(seen));
        sum.missed.extend(one.missed);
        sum.doubled.extend(one.doubled);
        sum.invented.extend(one.invented);
        sum.out_of_order += one.out_of_order;
    }
    sum
}

/// Every stream has the versions 1, 2, 3 … without holes, in the order of their positions.
pub(crate) async fn assert_versions_without_holes(session: &Session) {
    let sql = "SELECT stream_id || ' version ' || version FROM (
        SELECT stream_id, version,
               row_number() OVER (PARTITION BY stream_id ORDER BY position) AS expected
          FROM everfold.events) numbered
        WHERE version <> expected";
    let rows = session.rows(sql).await.expect("the events can be read");
    assert!(rows.is_empty(), "versions out of place: {rows:?}");
}

/// How often each event id is stored.
pub(crate) async fn copies(session: &Session) -> HashMap<String, i64> {
    let sql = "SELECT id, count(*) FROM everfold.events GROUP BY id";
    let rows = session.rows(sql).await.expect("the events can be read");
    let copies = rows.into_iter().map(|mut row| {
        let count = row[1].take().expect("a count is a number").parse().expect("a number");
        (row[0].take().expect("an event has an id"), count)
    });
    copies.collect()
}

mod tests {
    use super::{ByKey, Comparison, compare, compare_keys};

    #[test]
    fn checker_sees_an_event_under_another_key() {
        let by_key = |rows: [(&str, &[i64]); 2]| -> ByKey {
            rows.into_iter().map(|(key, list)| (key.to_owned(), list.to_vec())).collect()
        };
        let stored = by_key([("a", &[1, 3]), ("b", &[2])]);
        assert!(compare_keys(&stored, &stored).is_exact());
        let comparison = compare_keys(&stored, &by_key([("a", &[3, 1]), ("c", &[2])]));
        let (missed, invented) = (vec![2], vec![2]);
        let expected = Comparison { missed, invented, out_of_order: 1, ..Comparison::default() };
        assert_eq!(comparison, expected);
    }

    #[test]
    fn checker_sees_what_is_missing_doubled_invented_or_out_of_order() {
        assert!(compare(&[1, 2, 5], &[1, 2, 5]).is_exact());
        let comparison = compare(&[1, 2, 5], &[5, 1, 5, 7]);
        let expected =
            Comparison { missed: vec![2], doubled: vec![5], invented: vec![7], out_of_order: 1 };
        assert_eq!(comparison, expected);
    }
}
