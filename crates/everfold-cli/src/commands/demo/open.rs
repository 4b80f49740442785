//! The shop while it is open: watched, rebuilt, verified, and closed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use everfold::{RebuildPhase, RebuildProgress, RunnerHandle, Store, Verification, VerifyOptions};
use futures::stream::TryStreamExt;
use indicatif::HumanCount;
use tokio::task::JoinSet;

use super::board::Board;
use super::check::{CartRow, Faults, Fold};
use super::project::Project;
use super::rebuilder::{self, Rebuilder};
use super::shop::Till;
use super::{BESTSELLERS, CART_TOTALS, step};

/// The rebuilder is killed when it has so much of the history.
const KILL_AT_PERCENT: u64 = 40;
/// How long `bestsellers` may take to show the last event, once nobody writes.
const CATCH_UP_WITHIN: Duration = Duration::from_secs(60);

/// A shop that is open.
pub(super) struct Open {
    pub(super) project: Project,
    pub(super) store: Store,
    pub(super) till: Arc<Till>,
    pub(super) board: Board,
    pub(super) writers: JoinSet<anyhow::Result<()>>,
    pub(super) runner: Option<RunnerHandle>,
}

impl Open {
    pub(super) fn rebuilder(&self, rate: u64) -> anyhow::Result<Rebuilder> {
        Rebuilder::start(&self.project.folder, &self.project.url, CART_TOTALS, rate)
    }

    /// Shows how the shop gets on for so long.
    pub(super) async fn watch(&mut self, time: Duration) -> anyhow::Result<()> {
        tokio::select! {
            watched = self.board.watch(time) => watched,
            failed = failed(&mut self.writers) => failed,
        }
    }

    /// Shows how the shop and the rebuild get on, for a moment.
    async fn look(&mut self, progress: Option<&RebuildProgress>) -> anyhow::Result<()> {
        tokio::select! {
            looked = self.board.look(progress) => looked,
            failed = failed(&mut self.writers) => failed,
        }
    }

    /// Kills it when it has a good part; `None` if it has ended before that.
    pub(super) async fn kill_half_way(
        &mut self,
        mut first: Rebuilder,
    ) -> anyhow::Result<Option<u64>> {
        loop {
            let progress = rebuilder::progress(&self.store, CART_TOTALS).await?;
            if let Some(progress) = &progress
                && is_filled(progress)
                && progress.events_done * 100 >= progress.events_total * KILL_AT_PERCENT
            {
                let (id, done) = (first.id, progress.events_done);
                if !first.kill().await? {
                    return Ok(None);
                }
                let (done_of, total) = (HumanCount(done), HumanCount(progress.events_total));
                step("kill", &format!("process {id} with SIGKILL, at {done_of} of {total} events"));
                return Ok(Some(done));
            }
            if let Some(status) = first.has_ended()? {
                first.outcome(status).await?;
                return Ok(None);
            }
            self.look(progress.as_ref()).await?;
        }
    }

    /// Waits for the end of the second one; where it went on.
    pub(super) async fn go_on(&mut self, mut second: Rebuilder) -> anyhow::Result<Option<u64>> {
        let id = second.id;
        step("rebuild", &format!("process {id} waits for the lease of the dead one"));
        let worker = format!(":{id}");
        let mut went_on_at = None;
        loop {
            let progress = rebuilder::progress(&self.store, CART_TOTALS).await?;
            let is_at_work = |rebuild: &&RebuildProgress| {
                rebuild.worker.as_ref().is_some_and(|name| name.ends_with(&worker))
            };
            if went_on_at.is_none()
                && let Some(rebuild) = progress.as_ref().filter(is_at_work)
            {
                went_on_at = Some(rebuild.events_done);
                let done = HumanCount(rebuild.events_done);
                step("rebuild", &format!("process {id} goes on at {done} events"));
            }
            if let Some(status) = second.has_ended()? {
                second.outcome(status).await?;
                return Ok(went_on_at);
            }
            self.look(progress.as_ref()).await?;
        }
    }

    /// The rebuild, after its end.
    pub(super) async fn rebuilt(&self) -> anyhow::Result<RebuildProgress> {
        let progress = rebuilder::progress(&self.store, CART_TOTALS).await?;
        progress.context("the store knows of no rebuild")
    }

    pub(super) async fn verify(&mut self, name: &str) -> anyhow::Result<Verification> {
        let (store, options) = (self.store.clone(), VerifyOptions::default());
        let verifying = store.verify(name, options);
        tokio::pin!(verifying);
        loop {
            tokio::select! {
                verified = &mut verifying => return Ok(verified?),
                looked = self.look(None) => looked?,
            }
        }
    }

    /// Closes the shop and compares: what is wrong, rows that were compared, events in the log.
    pub(super) async fn close(&mut self, differ: u64) -> anyhow::Result<(Faults, u64, u64)> {
        self.till.close();
        while let Some(written) = self.writers.join_next().await {
            written.context("a writer panicked")??;
        }
        self.board.end();
        step("closed", "compare what was acknowledged, the log, and every row");
        for name in [CART_TOTALS, BESTSELLERS] {
            let last = self.store.last_position().await?;
            self.store.wait_for(name, last, CATCH_UP_WITHIN).await?;
        }
        if let Some(runner) = self.runner.take() {
            runner.stop().await;
        }
        let mut fold = Fold::default();
        let mut events = self.store.read_all().events();
        while let Some(event) = events.try_next().await? {
            fold.apply(&event)?;
        }
        let (carts, products) = (self.cart_rows().await?, self.product_rows().await?);
        let mut faults = fold.compare_acknowledged(&self.till.acknowledged());
        let again = self.store.verify(BESTSELLERS, VerifyOptions::default()).await?;
        faults.add(&fold.compare_carts(&carts).with_verified(differ));
        faults.add(&fold.compare_products(&products).with_verified(again.differences));
        Ok((faults, (carts.len() + products.len()) as u64, fold.events()))
    }

    async fn cart_rows(&self) -> anyhow::Result<Vec<CartRow>> {
        let columns = ["cart_id", "items", "history"];
        let rows = self.board.read_models.rows(&columns, CART_TOTALS, "").await?;
        let cart = |row: Vec<String>| -> anyhow::Result<CartRow> {
            let history = row[2].split(", ").map(str::to_owned).collect();
            Ok(CartRow { cart: row[0].clone(), items: row[1].parse()?, history })
        };
        rows.into_iter().map(cart).collect()
    }

    async fn product_rows(&self) -> anyhow::Result<Vec<(String, i64)>> {
        let rows = self.board.read_models.rows(&["sku", "in_carts"], BESTSELLERS, "").await?;
        rows.into_iter().map(|row| Ok((row[0].clone(), row[1].parse()?))).collect()
    }
}

/// Resolves when a writer has failed; writers do not end by themselves.
async fn failed(writers: &mut JoinSet<anyhow::Result<()>>) -> anyhow::Result<()> {
    match writers.join_next().await {
        Some(ended) => {
            ended.context("a writer panicked")??;
            bail!("a writer has stopped")
        }
        None => std::future::pending().await,
    }
}

fn is_filled(progress: &RebuildProgress) -> bool {
    let fills = [RebuildPhase::Copying, RebuildPhase::CatchingUp];
    progress.events_total > 0 && fills.contains(&progress.phase)
}
