//! The command line: what every command shares, and the commands.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Parser};

use crate::commands::Command;
use crate::failure::Outcome;

const AFTER_HELP: &str = "\
The store is the one that --url names, or else the variable EVERFOLD_URL, or else
`[store] url` in the project's everfold.toml, or else the SQLite file everfold.db
in the project folder.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a check found differences or a problem.

Examples:
  everfold demo                          a shop to watch, nothing to set up
  everfold init shop                     a project folder with a store in it
  everfold --project shop events         the events of that store
  everfold --url postgres://app@db/shop doctor";

/// An event store on PostgreSQL and on an embedded SQLite file
#[derive(Debug, Parser)]
#[command(name = "everfold", version, after_help = AFTER_HELP, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// The store: postgres://user@host/database or sqlite:file.db
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// The project folder, where everfold.toml is [default: the current folder]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) project: Option<PathBuf>,
    /// Answer every confirmation with yes
    #[arg(long, global = true)]
    pub(crate) yes: bool,
}

impl Cli {
    pub(crate) fn run(self) -> anyhow::Result<Outcome> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .context("the runtime could not be started")?;
        let outcome = runtime.block_on(self.command.run(&self.global));
        // A thread that still waits for a line of stdin must not keep a failed import from ending.
        runtime.shutdown_background();
        outcome
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_says_what_it_is_for_and_shows_examples() {
        fn check(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            assert!(command.get_about().is_some(), "{path} has no purpose");
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.contains("Examples:\n"), "{path} has no examples");
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{path} {} has no help", argument.get_id());
            }
            for subcommand in command.get_subcommands() {
                check(subcommand, &path);
            }
        }
        check(&Cli::command(), "");
    }
}
