//! How a command ends: exit codes, and errors as text.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | failed |
//! | 2 | wrong usage |
//! | 3 | a check found differences or something unhealthy |

use std::fmt;
use std::process::ExitCode;

use crate::output::StdoutClosed;

/// How a command ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It did what was asked.
    Done,
    /// It did, and what it looked at is not as it should be.
    Unhealthy,
    /// It failed and has told all about it already.
    Failed,
}

/// A combination of arguments that makes no sense.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Tells about an error, and gives the code to exit with.
pub(crate) fn exit_code(result: anyhow::Result<Outcome>) -> ExitCode {
    let error = match result {
        Ok(Outcome::Done) => return ExitCode::SUCCESS,
        Ok(Outcome::Failed) => return ExitCode::from(1),
        Ok(Outcome::Unhealthy) => return ExitCode::from(3),
        Err(error) => error,
    };
    if error.is::<StdoutClosed>() {
        // Whoever read our output has seen enough.
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {}", describe(error.as_ref()));
    if error.is::<Usage>() {
        eprintln!("\nFor more information, try '--help'.");
        return ExitCode::from(2);
    }
    ExitCode::from(1)
}

/// An error with its causes, leaving out those that say again what stands there already.
pub(crate) fn describe(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        let said = plain(&said);
        if !adds_nothing(&text, said) {
            text.push_str(": ");
            text.push_str(said);
        }
        cause = error.source();
    }
    text
}

/// A server's message without its severity and the lines below it (detail, hint), which those
/// above have taken up: `ERROR: no such thing` is `no such thing`.
fn plain(said: &str) -> &str {
    let line = said.lines().next().unwrap_or_default();
    match line.split_once(": ") {
        Some((severity, message)) if ["ERROR", "FATAL", "PANIC"].contains(&severity) => message,
        _ => line,
    }
}

fn adds_nothing(text: &str, said: &str) -> bool {
    // The name of a kind, which drivers put above the actual message.
    let kinds = ["db error", "error connecting to server", "error communicating with the server"];
    kinds.contains(&said) || text.to_lowercase().contains(&said.to_lowercase())
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn cause_is_shown_once() {
        let told =
            anyhow!("no route").context("host db: no route").context("cannot open the store");
        assert_eq!(describe(told.as_ref()), "cannot open the store: host db: no route");
        let server = anyhow!("ERROR: no table\nHINT: create it").context("no table; create it");
        assert_eq!(describe(server.as_ref()), "no table; create it");
        let kind = anyhow!("no route").context("db error").context("cannot open the store");
        assert_eq!(describe(kind.as_ref()), "cannot open the store: no route");
    }
}
