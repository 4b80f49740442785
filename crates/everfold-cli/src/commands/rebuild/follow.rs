//! Watching a rebuild until its end, or until somebody has seen enough.

use std::future::Future;

use anyhow::bail;
use clap::Args;
use everfold::{GenerationStatus, ProjectionError, ProjectionStatus, Rebuild, RebuildPhase, Store};
use futures::StreamExt;

use super::end;
use super::show::Shown;
use crate::failure::Outcome;
use crate::output::{self, shown};
use crate::signals::Signals;

/// Whether it is watched, and how its end is told.
#[derive(Debug, Args)]
pub(crate) struct Following {
    /// Ask for it and leave it to the runners
    #[arg(long)]
    detach: bool,
    /// Only say what would be done
    #[arg(long, conflicts_with = "detach")]
    pub(crate) dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What comes of asking for a rebuild.
pub(crate) type Asked = Result<Rebuild, ProjectionError>;

/// Asks for a rebuild, shows how it gets on, and tells how it ended.
pub(crate) async fn follow(
    store: &Store,
    name: &str,
    following: Following,
    asked: impl Future<Output = Asked>,
) -> anyhow::Result<Outcome> {
    // First, so that a signal in between is not lost.
    let mut signals = Signals::listen()?;
    let mut rebuild = asked.await?;
    if following.detach {
        return detach(store, following, rebuild).await;
    }
    if rebuild.joined() {
        eprintln!("{}", joined(name, &rebuild));
    }
    let mut shown = Shown::new(name);
    shown.set(&rebuild.progress(), rebuild.works_here());
    loop {
        tokio::select! {
            biased;
            () = signals.next() => {
                drop(shown);
                return leave(name, rebuild, &mut signals).await;
            }
            progress = rebuild.next() => match progress {
                Some(progress) => shown.set(&progress, rebuild.works_here()),
                None => break,
            },
        }
    }
    drop(shown);
    let joined = rebuild.joined();
    let progress = rebuild.progress();
    match rebuild.finish().await {
        Ok(progress) => {
            let kept = kept(store, name).await;
            output::print(&end::Ended::new(progress, joined, kept), following.json)?;
            Ok(Outcome::Done)
        }
        // It is there, and a check kept readers from being switched over.
        Err(error) if progress.phase == RebuildPhase::Built => {
            output::print(&end::Ended::new(progress, joined, None), following.json)?;
            eprintln!("error: {}", self::shown(&error.to_string()));
            Ok(Outcome::Unhealthy)
        }
        Err(error) => Err(error.into()),
    }
}

fn joined(name: &str, rebuild: &Rebuild) -> String {
    let progress = rebuild.progress();
    let who = match &progress.worker {
        Some(worker) => format!("{} works on it", shown(worker)),
        None => "nobody works on it just now".to_owned(),
    };
    let by = shown(&progress.requested_by);
    format!("a rebuild of {name} is under way, asked for by {by}; {who}")
}

/// The version of the generation that readers saw before, if there is one.
async fn kept(store: &Store, name: &str) -> Option<u32> {
    let all = store.projections().await.unwrap_or_default();
    let is_kept =
        |status: &&ProjectionStatus| status.name == name && status.status == GenerationStatus::Kept;
    all.iter().find(is_kept).map(|status| status.version)
}

async fn detach(store: &Store, following: Following, rebuild: Rebuild) -> anyhow::Result<Outcome> {
    let (joined, progress) = (rebuild.joined(), rebuild.progress());
    rebuild.leave().await;
    let carried_by = store.rebuild_carriers(progress.id).await?;
    output::print(&end::Detached { joined, carried_by, progress }, following.json)?;
    Ok(Outcome::Done)
}

/// Ends the work here, so that somebody else can go on at once.
async fn leave(name: &str, rebuild: Rebuild, signals: &mut Signals) -> anyhow::Result<Outcome> {
    let works_here = rebuild.works_here();
    if works_here {
        eprintln!("stopping: the transaction in hand is finished, another signal ends it at once");
    }
    tokio::select! {
        biased;
        () = signals.next() => bail!("ended at once; the lease of the rebuild runs out by itself"),
        () = rebuild.leave() => {}
    }
    let state = if works_here { "not finished" } else { "no longer watched" };
    eprintln!(
        "the rebuild of {name} is {state}: `everfold rebuild {name}` goes on with it, from anywhere, and \
         so does a runner that carries it; `everfold rebuilds cancel {name}` gives it up"
    );
    Ok(Outcome::Failed)
}
