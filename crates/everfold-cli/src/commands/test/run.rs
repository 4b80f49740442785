//! Cases through the library's kit, on scratch stores.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use everfold::Projection;
use everfold::testing::{ProjectionTest, RowDifference, TestFailure};

use super::check::{self, Table};
use super::file::Case;

/// What came of a case.
pub(super) enum Verdict {
    Passed {
        /// In how many ways the events were applied.
        variants: usize,
    },
    Failed {
        /// The way in which it failed.
        variant: String,
        /// What that way has shown, where the events as given are as expected.
        rule: Option<&'static str>,
        message: String,
        rows: Vec<RowDifference>,
    },
    /// The case could not be run.
    NotRun { message: String },
    /// It was interrupted.
    Stopped,
}

/// What runs the cases.
pub(super) struct Bench {
    projections: HashMap<String, Projection>,
    /// What each projection makes, once it was asked for.
    tables: HashMap<String, Result<Vec<Table>, String>>,
    /// Where scratch stores are made: beside this one, or in SQLite files.
    url: Option<String>,
    stop: Arc<AtomicBool>,
}

impl Bench {
    pub(super) fn new(
        projections: Vec<Projection>,
        url: Option<String>,
        stop: Arc<AtomicBool>,
    ) -> Bench {
        let named = projections.into_iter().map(|one| (one.name().to_owned(), one));
        Bench { projections: named.collect(), tables: HashMap::new(), url, stop }
    }

    pub(super) async fn run(&mut self, case: &Case) -> Verdict {
        let test = match self.prepare(case).await {
            Ok(test) => test,
            Err(message) => return Verdict::NotRun { message },
        };
        let variants = test.variants().len();
        match test.run().await {
            Ok(()) => Verdict::Passed { variants },
            Err(failure) if failure.is_stopped() => Verdict::Stopped,
            Err(failure) if failure.is_difference() => failed(&failure),
            Err(failure) => Verdict::NotRun { message: self.with_advice(&failure) },
        }
    }

    /// The case as a test of the kit; the error says what of it there is not.
    async fn prepare(&mut self, case: &Case) -> Result<ProjectionTest, String> {
        let tables = self.tables_of(&case.projection).await?;
        let mut test = self.test(&case.projection).stop_when(Arc::clone(&self.stop));
        test = given(test, case).then_refused(&case.fails);
        for expected in &case.then {
            let (table, columns) = check::columns(case, expected, &tables)?;
            test = test.then_table(table, columns, &expected.rows);
        }
        for &variation in &case.without {
            test = test.without(variation);
        }
        Ok(test)
    }

    async fn tables_of(&mut self, projection: &str) -> Result<Vec<Table>, String> {
        if !self.tables.contains_key(projection) {
            let found = self.test(projection).tables().await;
            let found = found.map_err(|failure| self.with_advice(&failure));
            self.tables.insert(projection.to_owned(), found);
        }
        self.tables[projection].clone()
    }

    fn test(&self, projection: &str) -> ProjectionTest {
        let test = ProjectionTest::new(self.projections[projection].clone());
        match &self.url {
            Some(url) => test.on(url),
            None => test.on_sqlite(),
        }
    }

    /// SQL for PostgreSQL alone is no mistake, but it cannot be run here.
    fn with_advice(&self, failure: &TestFailure) -> String {
        let message = match failure.variant() {
            Some(variant) => format!("{variant}: {}", failure.message()),
            None => failure.message().to_owned(),
        };
        match &self.url {
            Some(_) => message,
            None => format!(
                "{message}\nCases run on SQLite where nothing else is said; SQL that is for \
                 PostgreSQL alone needs a server: --url postgres://…, or `[test] url` in everfold.toml"
            ),
        }
    }
}

/// Events of one stream in a row, and of one time, are one append.
fn given(mut test: ProjectionTest, case: &Case) -> ProjectionTest {
    let is_one = |one: &super::file::Given, next: &super::file::Given| {
        one.stream == next.stream && one.recorded_at == next.recorded_at
    };
    for events in case.given.chunk_by(is_one) {
        let (stream, recorded_at) = (events[0].stream.as_str(), events[0].recorded_at);
        let events = events.iter().map(|given| given.event.clone());
        test = match recorded_at {
            Some(recorded_at) => test.given_events_at(recorded_at, stream, events),
            None => test.given_events(stream, events),
        };
    }
    test
}

fn failed(failure: &TestFailure) -> Verdict {
    Verdict::Failed {
        variant: failure.variant().unwrap_or_default().to_owned(),
        rule: failure.variation().map(|variation| variation.rule()),
        message: failure.message().to_owned(),
        rows: failure.rows().to_vec(),
    }
}
