//! The ways in which the same events may reach a projection. All of them must give the same.

use super::history::{Given, one_by_one, other_orders};
use super::run::Plan;
use crate::projection::Projection;
use crate::projection::builder::check;
use crate::projection::definition::Lifecycle;

/// What a [`ProjectionTest`](super::ProjectionTest) varies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Variation {
    /// Every append is repeated with the same event ids.
    Repeats,
    /// Every batch is applied, rolled back as by a crash before the commit, and applied again.
    Crashes,
    /// Batches of 1, 2 and 7 events, and one append for each event.
    Batches,
    /// Other orders of the streams that keep the order within each stream and each key.
    Order,
    /// Three shards.
    Shards,
    /// Inline instead of catch-up, or the other way round.
    Lifecycle,
}

impl Variation {
    /// What holds for every projection, and not for one that fails here alone.
    #[must_use]
    pub fn rule(self) -> &'static str {
        match self {
            Variation::Repeats => "an append that is repeated must change nothing",
            Variation::Crashes => {
                "after a crash before the commit events are applied again: nothing outside the \
                 transaction may remember the first time"
            }
            Variation::Batches => "the result must not depend on how events are cut into batches",
            Variation::Order => {
                "order is kept within a stream and within a key only: the result must not depend on \
                 the order of different keys"
            }
            Variation::Shards => {
                "keys in different shards are applied at different times, by different runners: the \
                 result must not depend on that"
            }
            Variation::Lifecycle => "inline and catch-up must give the same",
        }
    }
}

/// As many events in a batch as there are.
pub(super) const ALL: usize = 10_000;

/// All plans: first the events as they were given, then one for each variant.
pub(super) fn plans(
    projection: &Projection,
    given: &[Given],
    keys: &[Vec<String>],
    without: &[Variation],
) -> Vec<Plan> {
    let as_given = Plan {
        name: "as given".to_owned(),
        variation: None,
        projection: projection.clone(),
        appends: given.to_vec(),
        batch: ALL,
        crash: false,
        repeat: false,
    };
    let mut plans = vec![as_given.clone()];
    let mut vary = |variation, name: String, change: &dyn Fn(&mut Plan)| {
        if !without.contains(&variation) {
            let mut plan = Plan { name, variation: Some(variation), ..as_given.clone() };
            change(&mut plan);
            plans.push(plan);
        }
    };
    vary(Variation::Crashes, "with a crash before each commit".into(), &|plan| {
        plan.projection = with_lifecycle(projection, Lifecycle::CatchUp);
        plan.crash = true;
    });
    vary(Variation::Repeats, "with every append repeated".into(), &|plan| plan.repeat = true);
    for batch in [1, 2, 7] {
        vary(Variation::Batches, format!("in batches of {batch}"), &|plan| {
            plan.projection = with_lifecycle(projection, Lifecycle::CatchUp);
            plan.batch = batch;
        });
    }
    vary(Variation::Batches, "with one append for each event".into(), &|plan| {
        plan.appends = one_by_one(given);
    });
    for (name, order) in other_orders(given, keys) {
        vary(Variation::Order, name.to_owned(), &|plan| plan.appends.clone_from(&order));
    }
    if projection.definition.lifecycle == Lifecycle::CatchUp {
        vary(Variation::Shards, "in three shards".into(), &|plan| {
            plan.projection.definition.shards = 3;
        });
    }
    if let Some(other) = other_lifecycle(projection) {
        let name = format!("as {}", other.definition.lifecycle);
        vary(Variation::Lifecycle, name, &|plan| plan.projection = other.clone());
    }
    plans
}

fn with_lifecycle(projection: &Projection, lifecycle: Lifecycle) -> Projection {
    let mut other = projection.clone();
    other.definition.lifecycle = lifecycle;
    if lifecycle == Lifecycle::Inline {
        other.definition.shards = 1;
    }
    other
}

/// The same with the other lifecycle, where it can have it.
fn other_lifecycle(projection: &Projection) -> Option<Projection> {
    let other = match projection.definition.lifecycle {
        Lifecycle::Inline => with_lifecycle(projection, Lifecycle::CatchUp),
        Lifecycle::CatchUp => with_lifecycle(projection, Lifecycle::Inline),
    };
    check(&other.definition).is_ok().then_some(other)
}
