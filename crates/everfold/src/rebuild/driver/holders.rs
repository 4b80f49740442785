//! Waiting for those who hold gates at one moment, while others come and go.

use std::collections::HashSet;

use crate::store::GateHolder;

/// Transactions that are waited for.
///
/// One that is prepared for a two-phase commit goes on under another name. So when one is gone, those
/// that are prepared by then are waited for too: it may be one of them.
#[derive(Debug)]
pub(super) struct Waiting {
    waiting: HashSet<String>,
    prepared: HashSet<String>,
}

impl Waiting {
    pub(super) fn for_all(holders: &[GateHolder]) -> Self {
        let of = |prepared: bool| {
            let some = holders.iter().filter(move |holder| holder.is_prepared == prepared);
            some.map(|holder| holder.transaction.clone()).collect()
        };
        Waiting { waiting: of(false), prepared: of(true) }
    }

    /// Takes in who holds the gates now.
    pub(super) fn look(&mut self, holders: &[GateHolder]) {
        let holds = |transaction: &String| holders.iter().any(|h| h.transaction == *transaction);
        let before = self.waiting.len();
        self.waiting.retain(&holds);
        self.prepared.retain(&holds);
        if self.waiting.len() < before {
            let prepared = holders.iter().filter(|holder| holder.is_prepared);
            self.prepared.extend(prepared.map(|holder| holder.transaction.clone()));
        }
    }

    pub(super) fn is_for(&self, holder: &GateHolder) -> bool {
        self.waiting.contains(&holder.transaction) || self.prepared.contains(&holder.transaction)
    }

    pub(super) fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.prepared.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(transaction: &str) -> GateHolder {
        let is_prepared = transaction.starts_with('-');
        let transaction = transaction.to_owned();
        GateHolder { transaction, is_prepared, description: String::new() }
    }

    #[test]
    fn those_who_come_later_are_not_waited_for() {
        let mut waiting = Waiting::for_all(&[holder("3/1"), holder("4/7")]);
        waiting.look(&[holder("4/7"), holder("5/2")]);
        assert!(waiting.is_for(&holder("4/7")) && !waiting.is_for(&holder("5/2")));
        waiting.look(&[holder("5/2"), holder("4/8")]);
        assert!(waiting.is_over());
    }

    #[test]
    fn one_that_is_prepared_meanwhile_is_waited_for_under_its_new_name() {
        let mut waiting = Waiting::for_all(&[holder("3/1")]);
        waiting.look(&[holder("-1/740")]);
        assert!(!waiting.is_over(), "its events are not visible yet");
        waiting.look(&[holder("-1/740"), holder("-1/741")]);
        assert!(!waiting.is_for(&holder("-1/741")), "nobody that was waited for can be that one");
        waiting.look(&[holder("-1/741")]);
        assert!(waiting.is_over());
    }
}
