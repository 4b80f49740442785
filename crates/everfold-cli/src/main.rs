//! The `everfold` command.
//!
//! `cli` is the command line, `commands` has one file for each command, and everything they share
//! stands beside it. All of it calls the library; SQL is only where the demo reads its read models,
//! as an application does.

mod age;
mod cli;
mod commands;
mod confirm;
mod dry_run;
mod event_line;
mod failure;
mod output;
mod progress;
mod project;
#[cfg(test)]
mod reference;
mod selection;
mod signals;
mod size;
mod table;
mod warnings;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    warnings::show_on_stderr();
    failure::exit_code(cli.run())
}
