//! The commands, one file each.

mod append;
mod completions;
mod dead_letters;
mod demo;
mod differences;
mod doctor;
mod events;
mod export;
mod health;
mod import;
mod init;
mod listing;
mod messages;
mod pause;
mod plan;
mod promote;
mod rebuild;
mod rebuilds;
mod remove;
mod replay;
mod resume;
mod retire;
mod rollback;
mod run;
mod schema;
mod show;
mod skips;
mod snapshot;
mod snapshots;
mod status;
mod test;
mod verify;
mod wait;

use anyhow::bail;
use clap::Subcommand;
use everfold::{GenerationStatus, ProjectionStatus, Store};

use crate::cli::Global;
use crate::failure::Outcome;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Init(init::Init),
    #[command(subcommand)]
    Schema(schema::Schema),
    Append(append::Append),
    Import(import::Import),
    Export(export::Export),
    Events(events::Events),
    Test(test::Test),
    Run(run::Run),
    Status(status::Status),
    Show(show::Show),
    Health(health::Health),
    Wait(wait::Wait),
    Plan(plan::PlanCommand),
    Rebuild(rebuild::Rebuild),
    Rebuilds(rebuilds::Rebuilds),
    Promote(promote::Promote),
    Rollback(rollback::Rollback),
    Retire(retire::Retire),
    Remove(remove::Remove),
    Verify(verify::Verify),
    Snapshot(snapshot::Snapshot),
    Snapshots(snapshots::Snapshots),
    Replay(replay::Replay),
    Pause(pause::Pause),
    Resume(resume::Resume),
    #[command(subcommand, name = "dead-letters")]
    DeadLetters(dead_letters::DeadLetters),
    #[command(subcommand)]
    Skips(skips::Skips),
    Messages(messages::Messages),
    Doctor(doctor::Doctor),
    Demo(demo::Demo),
    Completions(completions::Completions),
}

impl Command {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        match self {
            Command::Init(command) => command.run(global).await,
            Command::Schema(command) => command.run(global).await,
            Command::Append(command) => command.run(global).await,
            Command::Import(command) => command.run(global).await,
            Command::Export(command) => command.run(global).await,
            Command::Events(command) => command.run(global).await,
            Command::Test(command) => command.run(global).await,
            Command::Run(command) => command.run(global).await,
            Command::Status(command) => command.run(global).await,
            Command::Show(command) => command.run(global).await,
            Command::Health(command) => command.run(global).await,
            Command::Wait(command) => command.run(global).await,
            Command::Plan(command) => command.run(global).await,
            Command::Rebuild(command) => command.run(global).await,
            Command::Rebuilds(command) => command.run(global).await,
            Command::Promote(command) => command.run(global).await,
            Command::Rollback(command) => command.run(global).await,
            Command::Retire(command) => command.run(global).await,
            Command::Remove(command) => command.run(global).await,
            Command::Verify(command) => command.run(global).await,
            Command::Snapshot(command) => command.run(global).await,
            Command::Snapshots(command) => command.run(global).await,
            Command::Replay(command) => command.run(global).await,
            Command::Pause(command) => command.run(global).await,
            Command::Resume(command) => command.run(global).await,
            Command::DeadLetters(command) => command.run(global).await,
            Command::Skips(command) => command.run(global).await,
            Command::Messages(command) => command.run(global).await,
            Command::Doctor(command) => command.run(global).await,
            Command::Demo(command) => command.run(global).await,
            Command::Completions(command) => command.run(),
        }
    }
}

/// What pausing or resuming these would do: each as it stands now, if it is in one of the statuses from
/// which that can be done.
async fn would_change(
    store: &Store,
    verb: &str,
    names: &[String],
    from: &[GenerationStatus],
) -> anyhow::Result<Vec<String>> {
    let all = store.projections().await?;
    let mut would = Vec::new();
    for name in names {
        // For its error, which suggests a name.
        let status = store.projection(name).await?;
        let of_it = |other: &&ProjectionStatus| other.name == *name && from.contains(&other.status);
        let Some(changed) = all.iter().find(of_it) else {
            bail!("projection \"{name}\" is {}, so there is nothing to {verb}", status.status);
        };
        let ProjectionStatus { version, status, position, .. } = changed;
        would.push(format!("{verb} {name}: version {version} is {status} at position {position}"));
    }
    Ok(would)
}

/// The projection that was named, or all there are, each once.
async fn names_or_all(store: &Store, name: Option<String>) -> anyhow::Result<Vec<String>> {
    if let Some(name) = name {
        return Ok(vec![name]);
    }
    let mut names: Vec<String> =
        store.projections().await?.into_iter().map(|status| status.name).collect();
    names.sort();
    names.dedup();
    Ok(names)
}
