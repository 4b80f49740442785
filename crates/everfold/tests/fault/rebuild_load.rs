//! A store whose read model is rebuilt while writers of every kind append.

use std::sync::atomic::Ordering;
use std::time::Duration;

use everfold::{Pooler, Runner, RunnerHandle, Store, StoreOptions};
use everfold_testkit::{TestDatabase, eventually};

use crate::rebuild_reports::Reporter;
use crate::rebuild_stories::{Told, differences, projection, told};
use crate::rebuild_writers::Writers;
use crate::session::{LIMIT, Session, open_with};
use crate::workers::quick;

/// One try of a switch may hold appends up for a tenth of a second, and as long as it takes to apply what
/// is left, for which the server gives it half a second a statement. More than all of that together, by
/// the server's clock, is no matter of a busy machine.
const GATE_MAX: Duration = Duration::from_secs(5);

/// A store with a read model, a runner and writers, beside whom it is rebuilt.
pub(crate) struct Load {
    pub(crate) told: &'static Told,
    /// Where everybody goes but who looks after them.
    pub(crate) url: String,
    pub(crate) direct: String,
    pub(crate) truth: Session,
    carrying: Store,
    runner: RunnerHandle,
    writers: Writers,
    reporter: Reporter,
}

impl Load {
    /// Starts it all at this address of the database, and waits until there are some events.
    pub(crate) async fn start(name: &str, database: &TestDatabase, url: &str) -> Load {
        let (told, direct, url) = (told(name), database.url(), url.to_owned());
        let pooler = if url == direct { Pooler::Direct } else { Pooler::Transaction };
        let with = |options: &mut StoreOptions| options.pooler = pooler;
        let (carrying, old) = (open_with(&url, with).await, open_with(&url, with).await);
        carrying.register(projection(name)).await.unwrap();
        let mut options = quick();
        // The rebuilds are others'.
        options.rebuilds = 0;
        let runner = Runner::new(&carrying).projection(projection(name)).options(options);
        let runner = runner.start().await.unwrap();
        let writers = Writers::start(&carrying, &old, &url, told.view);
        let truth = Session::open(&direct).await;
        eventually("events come in", LIMIT, async || {
            truth.number("SELECT count(*) FROM everfold.events").await > 300
        })
        .await;
        let reporter = Reporter::start(&direct, told);
        Load { told, url, direct, truth, carrying, runner, writers, reporter }
    }

    /// Whether readers may see a read model that is not filled yet.
    pub(crate) fn is_in_place(&self, in_place: bool) {
        self.reporter.in_place.store(in_place, Ordering::SeqCst);
    }

    /// Fails unless the read model is what the log says, but for what is owed. One that catches up is
    /// behind at any moment.
    pub(crate) async fn assert_exact(&self, when: &str) {
        if !self.told.is_inline() {
            return;
        }
        let (events, found, exact) = differences(&self.truth, self.told).await;
        assert!(exact, "{when} of {}, {events} events: {found}", self.told.name);
    }

    /// Ends it all; nothing is lost, doubled, reordered or owed.
    pub(crate) async fn finish(self, what: &str) {
        let Load { told, truth, carrying, runner, writers, reporter, .. } = self;
        let reported = reporter.stop().await;
        let written = writers.stop().await;
        let head = carrying.high_water_mark().await.unwrap();
        carrying.wait_for(told.name, head, LIMIT).await.unwrap();
        let owed = "SELECT count(*) FROM everfold.skips s JOIN everfold.projections p \
            ON p.active_generation = s.generation";
        eventually("nothing is owed", LIMIT, async || truth.number(owed).await == 0).await;
        let (events, found, exact) = differences(&truth, told).await;
        println!(
            "{}: {events} events, {what}; {} appends rolled back, {} tries repeated; longest append \
             {:?}, longest seen wait for a gate {:?}; {} reports: {found}",
            told.name,
            written.rolled_back.load(Ordering::Relaxed),
            written.failed.load(Ordering::Relaxed),
            written.longest(),
            reported.gate,
            reported.reports,
        );
        assert!(reported.gate < GATE_MAX, "appends waited for {:?}", reported.gate);
        assert!(reported.reports > 0, "nobody reported");
        assert!(exact, "{found}");
        written.assert_all_stored(&truth).await;
        runner.stop().await;
    }
}
