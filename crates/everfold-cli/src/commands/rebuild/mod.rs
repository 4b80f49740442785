//! `everfold rebuild`, and what it shares with the other commands that switch what readers see.

mod end;
mod follow;
mod preview;
mod show;

use std::time::Duration;

use clap::Args;
use everfold::{Projection, ProjectionError, RebuildOptions, RebuildPreview, Store};

pub(crate) use follow::{Asked, Following, follow};
pub(crate) use preview::tell;
pub(crate) use show::{line, percent};

use crate::age;
use crate::cli::Global;
use crate::confirm::confirm;
use crate::failure::Outcome;
use crate::size;

/// Build a read model again from the log while appends go on, then switch readers over
///
/// A version that was raised in the project is built beside the one that readers see; so is a new
/// projection. Without a new version, the same one is built again. One that was stopped, here or
/// elsewhere, goes on where it stood.
#[derive(Debug, Args)]
#[command(after_help = "\
Readers keep the old read model until the switch, which is one row. The old one is kept,
and fed, so that `everfold rollback` goes back at once. Ctrl-C leaves the rebuild to
whoever takes it up next: the same command again, from anywhere, or a runner. If one is
under way already, this shows how it gets on.

--in-place and --drop-old throw away what readers see now or saw before, and are asked about.

Exits with 3 if it was built, and a check kept it from being promoted: more rows differ
than --max-differences allows, or events were put aside that readers have now.

Examples:
  everfold rebuild cart_totals
  everfold rebuild cart_totals --dry-run          which version, how many events, how long
  everfold rebuild cart_totals --no-promote       build and compare; then `everfold promote`
  everfold rebuild cart_totals --in-place         where there is no room for two
  everfold rebuild cart_totals --rate 20000 --max-commit-latency 20ms")]
pub(crate) struct Rebuild {
    /// The projection
    #[arg(value_name = "NAME")]
    name: String,
    /// Empty the read model and fill it again; readers see it grow
    #[arg(long, conflicts_with_all = ["no_promote", "drop_old", "max_differences", "no_compare"])]
    in_place: bool,
    /// Build and compare, but do not switch readers over
    #[arg(long)]
    no_promote: bool,
    /// Begin with the first event also where this version is partly built
    #[arg(long)]
    from_scratch: bool,
    #[command(flatten)]
    pace: Pace,
    #[command(flatten)]
    switching: Switching,
    /// Do not switch if more rows than this differ from the old version
    #[arg(long, value_name = "N", conflicts_with = "no_compare")]
    max_differences: Option<u64>,
    /// Do not compare a new version with the old one
    #[arg(long)]
    no_compare: bool,
    #[command(flatten)]
    following: Following,
}

/// How much of the machine it may take.
#[derive(Debug, Args)]
pub(crate) struct Pace {
    /// Most events applied in a second [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Slow down while a small commit takes longer than this [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = age::parse)]
    max_commit_latency: Option<Duration>,
    /// Do not give way to appends while history is copied
    #[arg(long, conflicts_with_all = ["rate", "max_commit_latency"])]
    full_speed: bool,
    /// Most transactions at once while history is copied [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    parallel: Option<u16>,
    /// Most memory for what is folded [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    memory: Option<usize>,
    /// How long nobody else takes over from a worker that gives no sign of life [default: 15s]
    #[arg(long, value_name = "TIME", value_parser = lease)]
    lease: Option<Duration>,
    /// Wait while so many rebuilds that were asked for earlier are under way [default: never]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    at_most: Option<u32>,
}

/// A lease that a worker on a busy machine can keep.
fn lease(text: &str) -> Result<Duration, String> {
    let lease = age::parse(text)?;
    match lease < Duration::from_secs(1) {
        true => Err("a lease is at least 1s".to_owned()),
        false => Ok(lease),
    }
}

impl Pace {
    pub(crate) fn set(&self, options: &mut RebuildOptions) {
        options.events_per_second = self.rate;
        options.commit_latency_max = self.max_commit_latency;
        options.at_most = self.at_most;
        options.full_speed = self.full_speed;
        if let Some(lease) = self.lease {
            options.lease_ttl = lease;
        }
        if let Some(parallel) = self.parallel {
            options.parallel = parallel.into();
        }
        if let Some(memory) = self.memory {
            options.memory_max = memory;
        }
    }
}

/// What the switch may cost, and what it needs.
#[derive(Debug, Args)]
pub(crate) struct Switching {
    /// Catch-up projections: switch although so many events behind what readers see [default: 0]
    #[arg(long, value_name = "N")]
    within: Option<u64>,
    /// Switch although events were put aside that the old version has applied
    #[arg(long)]
    allow_dead_letters: bool,
    /// How long one try to switch may hold appends up [default: 100ms]
    #[arg(long, value_name = "TIME", value_parser = age::parse)]
    fence_timeout: Option<Duration>,
    /// Drop what readers saw before instead of keeping it
    #[arg(long)]
    drop_old: bool,
}

impl Switching {
    /// Asks before the way back is thrown away.
    pub(crate) fn confirm(&self, global: &Global, name: &str) -> anyhow::Result<bool> {
        let question = format!(
            "Drop the version of {name} that readers see now, once they are switched over, so that there \
             is no way back?"
        );
        Ok(!self.drop_old || confirmed(global, &question)?)
    }

    pub(crate) fn set(&self, options: &mut RebuildOptions) {
        options.allow_dead_letters = self.allow_dead_letters;
        options.keep_old = !self.drop_old;
        if let Some(within) = self.within {
            options.within = within;
        }
        if let Some(timeout) = self.fence_timeout {
            options.fence_timeout = timeout;
        }
    }
}

/// A switch to a generation that is there.
#[derive(Debug, Args)]
pub(crate) struct Switch {
    /// The projection
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    switching: Switching,
    #[command(flatten)]
    following: Following,
}

impl Switch {
    pub(crate) async fn run(
        self,
        global: &Global,
        preview: impl AsyncFnOnce(&Store, &str) -> Result<RebuildPreview, ProjectionError>,
        ask: impl AsyncFnOnce(&Store, &str, RebuildOptions) -> Asked,
    ) -> anyhow::Result<Outcome> {
        let store = global.target()?.open_existing().await?;
        let mut options = RebuildOptions::default();
        self.switching.set(&mut options);
        let switched = async {
            if self.following.dry_run {
                let preview = preview(&store, &self.name).await?;
                return preview::tell(&preview, &options, self.following.json);
            }
            // What cannot be done is told before anybody is asked.
            preview(&store, &self.name).await?;
            if !self.switching.confirm(global, &self.name)? {
                return Ok(Outcome::Done);
            }
            let asked = ask(&store, &self.name, options);
            follow(&store, &self.name, self.following, asked).await
        };
        let outcome = switched.await;
        store.close().await;
        outcome
    }
}

impl Rebuild {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let projection = in_project(global, &self.name)?;
        let target = global.target()?;
        let store = match &projection {
            Some(_) if !self.following.dry_run => target.open_or_create().await?,
            _ => target.open_existing().await?,
        };
        let outcome = match self.following.dry_run {
            true => self.tell(&store, projection).await,
            false => self.rebuild(global, &store, projection).await,
        };
        store.close().await;
        outcome
    }

    /// What would be done. Of what would be refused the plan says why.
    async fn tell(&self, store: &Store, projection: Option<Projection>) -> anyhow::Result<Outcome> {
        let mut plan = store.plan(projection.iter().cloned()).await?;
        plan.changes.retain(|change| change.name == self.name);
        if plan.changes.iter().any(|change| change.action.is_refused()) {
            return super::plan::tell(store, plan, self.following.json);
        }
        let options = self.options();
        let preview = store.preview_rebuild(&self.name, &options, projection.as_ref()).await?;
        preview::tell(&preview, &options, self.following.json)
    }

    /// Asks before what readers see, or could go back to, is thrown away.
    fn confirm(&self, global: &Global) -> anyhow::Result<bool> {
        let question = format!(
            "Empty {} first, so that readers see it grow until it is filled again?",
            self.name
        );
        Ok((!self.in_place || confirmed(global, &question)?)
            && self.switching.confirm(global, &self.name)?)
    }

    async fn rebuild(
        self,
        global: &Global,
        store: &Store,
        projection: Option<Projection>,
    ) -> anyhow::Result<Outcome> {
        if projection.is_none() {
            // What is not there is told before anybody is asked.
            store.projection(&self.name).await?;
        }
        if !self.confirm(global)? {
            return Ok(Outcome::Done);
        }
        if let Some(projection) = projection {
            register(store, projection).await?;
        }
        let (name, options) = (self.name.clone(), self.options());
        follow(store, &name, self.following, store.rebuild(&name, options)).await
    }

    fn options(&self) -> RebuildOptions {
        let mut options = RebuildOptions::default();
        options.in_place = self.in_place;
        options.promote = !self.no_promote;
        options.from_scratch = self.from_scratch;
        options.max_differences = self.max_differences;
        options.compare = !self.no_compare;
        self.pace.set(&mut options);
        self.switching.set(&mut options);
        options
    }
}

/// Asks, and says so if nothing is done.
fn confirmed(global: &Global, question: &str) -> anyhow::Result<bool> {
    let confirmed = confirm(global, question)?;
    if !confirmed {
        eprintln!("nothing was done");
    }
    Ok(confirmed)
}

/// The projection of that name in the project's folder, if it is there.
pub(crate) fn in_project(global: &Global, name: &str) -> anyhow::Result<Option<Projection>> {
    let projections = Projection::load_all(global.folder())?;
    Ok(projections.into_iter().find(|projection| projection.name() == name))
}

/// Makes the project's version known to the store, as `everfold run` does.
pub(crate) async fn register(store: &Store, projection: Projection) -> anyhow::Result<()> {
    let lifecycle = projection.lifecycle();
    let registered = store.register(projection).await?;
    if registered.created {
        let (name, version) = (&registered.name, registered.version);
        eprintln!("registered {name} version {version} ({lifecycle})");
    }
    Ok(())
}
