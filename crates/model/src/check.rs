//! Runs of the checker: all states of a configuration, or the shortest way into a violation.

use std::fmt;
use std::time::{Duration, Instant};

use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};

use crate::actions::{Action, Protocol};
use crate::configuration::Configuration;
use crate::mistake::Mistake;
use crate::state::State;
use crate::story::Story;

/// What came of a configuration.
#[derive(Debug)]
pub struct Report {
    /// Different states, all that can be reached.
    pub states: usize,
    /// The longest of the shortest ways to them.
    pub depth: usize,
    /// How long it took.
    pub time: Duration,
    /// How many properties hold in every state.
    pub held: usize,
    /// How many situations had to be reached, and were.
    pub reached: usize,
    /// Properties that do not hold, each with a way into the violation.
    pub violated: Vec<(&'static str, Counterexample)>,
    /// Situations that were not reached.
    pub missed: Vec<&'static str>,
}

impl Report {
    /// Everything holds, and everything that had to be reached was.
    pub fn is_well(&self) -> bool {
        self.violated.is_empty() && self.missed.is_empty()
    }
}

/// Steps from the beginning into a violation, in plain words.
#[derive(Debug)]
pub struct Counterexample(Vec<String>);

impl Counterexample {
    /// How many steps there are.
    pub fn steps(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in (1..).zip(&self.0) {
            writeln!(f, "{number:4}. {step}")?;
        }
        Ok(())
    }
}

/// Visits every state of a configuration.
pub fn check(configuration: &Configuration) -> Report {
    let begun = Instant::now();
    let protocol = Protocol { configuration: configuration.clone() };
    let properties = protocol.properties();
    let checker = protocol.clone().checker().threads(2).spawn_bfs().join();
    let mut found = checker.discoveries();
    let (mut held, mut reached) = (0, 0);
    let (mut violated, mut missed) = (Vec::new(), Vec::new());
    for property in properties {
        match (property.expectation, found.remove(property.name)) {
            (Expectation::Sometimes, Some(_)) => reached += 1,
            (Expectation::Sometimes, None) => missed.push(property.name),
            (_, Some(path)) => violated.push((property.name, tell(&protocol, path))),
            (_, None) => held += 1,
        }
    }
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    Report { states, depth, time: begun.elapsed(), held, reached, violated, missed }
}

/// The shortest way into what a mistake violates. `None`: the mistake was not found.
pub fn find(mistake: Mistake) -> Option<Counterexample> {
    let protocol = Protocol { configuration: Configuration::with(mistake)? };
    let mut shortest = None;
    let mut depth = None;
    // The checker looks at states by the thousand before it stops, and keeps the last violation of
    // these: so again, with what is shorter only.
    loop {
        let until = HasDiscoveries::AnyOf([mistake.violates()].into());
        let mut builder = protocol.clone().checker().finish_when(until);
        if let Some(depth) = depth {
            builder = builder.target_max_depth(depth);
        }
        let checker = builder.spawn_bfs().join();
        let Some(path) = checker.discovery(mistake.violates()) else { break };
        depth = Some(path.clone().into_states().len());
        shortest = Some(path);
    }
    shortest.map(|path| tell(&protocol, path))
}

fn tell(protocol: &Protocol, path: Path<State, Action>) -> Counterexample {
    let steps = path.into_vec();
    let told = steps.into_iter().filter_map(|(state, action)| {
        let action = action?;
        let mut story = Story::listening();
        protocol.step(&state, action, &mut story)?;
        let who = protocol.configuration.name_of(action.actor as usize);
        Some(format!("{who}: {}", story.into_text()))
    });
    Counterexample(told.collect())
}
