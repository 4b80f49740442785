//! Asking before something that cannot be undone.

use std::io::{self, IsTerminal, Write};

use crate::cli::Global;
use crate::failure::Usage;

/// Asks a question on the terminal; `--yes` answers it.
///
/// # Errors
/// If there is nobody to ask.
pub(crate) fn confirm(global: &Global, question: &str) -> anyhow::Result<bool> {
    if global.yes {
        return Ok(true);
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        let question = question.lines().last().unwrap_or(question);
        let message = format!("{question} nobody is there to ask: run it with --yes if so");
        return Err(Usage(message).into());
    }
    eprint!("{question} [y/N] ");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
