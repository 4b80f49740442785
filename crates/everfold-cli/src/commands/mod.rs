//! The commands, one file each.

mod append;
mod completions;
mod demo;
mod doctor;
mod events;
mod export;
mod import;
mod init;
mod schema;

use clap::Subcommand;

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
            Command::Doctor(command) => command.run(global).await,
            Command::Demo(command) => command.run(global).await,
            Command::Completions(command) => command.run(),
        }
    }
}
