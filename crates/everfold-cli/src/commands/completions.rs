//! `everfold completions`.

use std::io::Write;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::failure::Outcome;
use crate::output::{self, Output};

/// Print a script that completes everfold's commands and options in a shell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  everfold completions bash > /etc/bash_completion.d/everfold
  everfold completions zsh > ~/.zfunc/_everfold
  everfold completions fish > ~/.config/fish/completions/everfold.fish")]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> anyhow::Result<Outcome> {
        // The generator cannot report a failed write, so it writes to memory.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "everfold", &mut script);
        let mut output = Output::new();
        output.write_all(&script).map_err(output::refused)?;
        output.flush()?;
        Ok(Outcome::Done)
    }
}
