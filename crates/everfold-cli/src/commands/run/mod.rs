//! `everfold run`.

mod report;

use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use everfold::{
    GenerationStatus, PlannedAction, Projection, ProjectionError, Registered, Runner, RunnerHandle,
    RunnerOptions, Store,
};

use crate::cli::Global;
use crate::dry_run::DryRun;
use crate::failure::Outcome;
use crate::output::shown;
use crate::signals::Signals;
use report::Reporter;

/// How long batches in hand may take to finish after a signal.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// How often this process looks at what its own runner says.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Run the projections of the project: register them, apply events as they come
///
/// Any number of these may run at once, on any number of machines: they share the work, and take
/// over from each other.
#[derive(Debug, Args)]
#[command(after_help = "\
SIGTERM or Ctrl-C finishes the batches in hand, gives the work to others and exits
with 0; a second one exits at once. A projection that fails is told and left standing,
the others go on; `everfold resume NAME` starts it again. The same goes for one that the
store refuses, because it was changed under its old version, for example. A mistake in a
project's file is told before anything is started.

Examples:
  everfold run
  everfold run --dry-run   the plan for these projections, as `everfold plan` shows it
  everfold run --only cart_totals --only daily_totals
  everfold run --once      apply what there is and end; exits with 1 if one has failed or
                           was refused")]
pub(crate) struct Run {
    /// Only this projection; may be given several times
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Apply everything up to now, then end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    dry: DryRun,
    /// Print the plan of a dry run as JSON
    #[arg(long, requires = "dry_run")]
    json: bool,
}

impl Run {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        // First, so that a signal during the start is not lost.
        let mut signals = Signals::listen()?;
        let projections = load(global.folder())?;
        if self.dry.dry_run {
            return self.plan(global, projections).await;
        }
        let store = global.target()?.open_or_create().await?;
        let outcome = tokio::select! {
            biased;
            () = signals.next() => Ok(Outcome::Done),
            started = self.start(&store, projections) => match started {
                Ok((runner, reporter)) => {
                    self.until_end(&store, runner, reporter, &mut signals).await
                }
                Err(error) => Err(error),
            },
        };
        store.close().await;
        outcome
    }

    /// What would become of the projections that would be run.
    async fn plan(&self, global: &Global, projections: Vec<Projection>) -> anyhow::Result<Outcome> {
        let store = global.target()?.open_existing().await?;
        let planned = async {
            for only in &self.only {
                if projections.iter().all(|projection| projection.name() != only) {
                    // For its error, which suggests a name.
                    store.projection(only).await?;
                    bail!("projection \"{only}\" is not in this project");
                }
            }
            let mut plan = store.plan(projections).await?;
            plan.changes.retain(|change| {
                change.action != PlannedAction::NotInProject
                    && (self.only.is_empty() || self.only.contains(&change.name))
            });
            super::plan::tell(&store, plan, self.json)
        };
        let outcome = planned.await;
        store.close().await;
        outcome
    }

    async fn start(
        &self,
        store: &Store,
        projections: Vec<Projection>,
    ) -> anyhow::Result<(RunnerHandle, Reporter)> {
        let mut options = RunnerOptions::default();
        options.stop_timeout = STOP_TIMEOUT;
        let mut runner = Runner::new(store).options(options);
        let chosen = |name: &str| self.only.is_empty() || self.only.iter().any(|only| only == name);
        let (mut wanted, others): (Vec<_>, Vec<_>) =
            projections.into_iter().partition(|projection| chosen(projection.name()));
        let unknown = self.only.iter().find(|only| wanted.iter().all(|p| p.name() != **only));
        let (mut refused, mut registered) = (0, Vec::new());
        if unknown.is_none() {
            let all = wanted.len();
            (wanted, registered) = register_all(store, wanted).await?;
            refused = all - wanted.len();
        }
        let names = wanted.iter().map(|projection| projection.name().to_owned()).collect();
        for only in self.only.iter().filter(|_| unknown.is_some()) {
            runner = runner.only(only);
        }
        // The others are given too, so that a mistyped name gets a suggestion.
        let given = wanted.into_iter().chain(others.into_iter().filter(|_| unknown.is_some()));
        let runner = runner.projections(given).start().await?;
        eprintln!("running as {}", runner.worker_name());
        let mut reporter = Reporter::new(names, refused);
        for Registered { name, version, status, .. } in &registered {
            reporter.know(name, *version, *status);
        }
        Ok((runner, reporter))
    }

    async fn until_end(
        &self,
        store: &Store,
        runner: RunnerHandle,
        mut reporter: Reporter,
        signals: &mut Signals,
    ) -> anyhow::Result<Outcome> {
        let caught_up = tokio::select! {
            biased;
            () = signals.next() => None,
            caught_up = runner.catch_up(), if self.once => Some(caught_up),
            () = watch(store, &runner, &mut reporter) => None,
        };
        if caught_up.is_none() {
            eprintln!("stopping: the batches in hand are finished, another signal ends it at once");
        }
        tokio::select! {
            biased;
            () = signals.next() => bail!("ended at once; leases run out by themselves"),
            () = runner.stop() => {}
        }
        if let Some(caught_up) = caught_up {
            return reporter.summary(store, caught_up).await;
        }
        eprintln!("stopped");
        Ok(Outcome::Done)
    }
}

/// Tells what happens, for ever.
async fn watch(store: &Store, runner: &RunnerHandle, reporter: &mut Reporter) {
    let mut every = tokio::time::interval(LOOK_EVERY);
    loop {
        every.tick().await;
        reporter.failures(&runner.failed());
        reporter.refusal(runner.refused());
        if reporter.is_due() {
            match store.projections().await {
                Ok(projections) => reporter.look(&projections),
                Err(error) => reporter.could_not_look(&error.to_string()),
            }
        }
    }
}

fn load(project: &Path) -> anyhow::Result<Vec<Projection>> {
    let projections = Projection::load_all(project)?;
    if projections.is_empty() {
        bail!(
            "there are no projections in {}; `everfold init DIR` makes a project with two to begin with",
            project.join("projections").display()
        );
    }
    Ok(projections)
}

/// Registers projections and returns those that can be run. One that the store refuses is told, and
/// takes none of the others with it; if there are no others, that is the error.
async fn register_all(
    store: &Store,
    projections: Vec<Projection>,
) -> anyhow::Result<(Vec<Projection>, Vec<Registered>)> {
    let (mut accepted, mut registered, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    for projection in projections {
        match register(store, &projection).await {
            Ok(found) => {
                accepted.push(projection);
                registered.push(found);
            }
            // The store itself, which says the same of all.
            Err(error @ ProjectionError::Store(_)) => return Err(error.into()),
            Err(error) => refused.push(error),
        }
    }
    if accepted.is_empty()
        && let Some(last) = refused.pop()
    {
        for error in &refused {
            eprintln!("error: {}", shown(&error.to_string()));
        }
        return Err(last.into());
    }
    for error in &refused {
        eprintln!("error: not run, the others are: {}", shown(&error.to_string()));
    }
    Ok((accepted, registered))
}

/// Registers a projection, and says what needs saying.
async fn register(store: &Store, projection: &Projection) -> Result<Registered, ProjectionError> {
    let registered = store.register(projection.clone()).await?;
    let (name, version) = (&registered.name, registered.version);
    let lifecycle = projection.lifecycle();
    if registered.created {
        eprintln!("registered {name} version {version} ({lifecycle})");
    }
    if registered.status != GenerationStatus::Active {
        let reason = registered.reason.as_deref().unwrap_or("no reason was given");
        eprintln!("{name} version {version} is {}: {}", registered.status, shown(reason));
    }
    Ok(registered)
}
