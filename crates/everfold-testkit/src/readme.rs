//! Programs that a README says to run, and what it says they print.

use std::process::Command;
use std::time::Duration;

/// Generous: test machines are busy.
const LIMIT: Duration = Duration::from_secs(120);

/// What a program prints, once it has ended well.
///
/// # Panics
///
/// When it cannot be started, fails, or does not end within two minutes.
pub async fn printed(command: Command) -> String {
    let name = format!("{command:?}");
    let mut command = tokio::process::Command::from(command);
    let output = tokio::time::timeout(LIMIT, command.kill_on_drop(true).output())
        .await
        .unwrap_or_else(|_| panic!("{name} did not end within {LIMIT:?}"))
        .unwrap_or_else(|error| panic!("{name} does not start: {error}"));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}\n{stdout}{stderr}", output.status);
    stdout
}

/// What a page shows below a command: the `text` block that follows the first line with the command.
///
/// # Panics
///
/// When the page does not have it.
#[track_caller]
pub fn shown(page: &str, command: &str) -> String {
    let mut lines = page.lines().skip_while(|line| !line.starts_with(command));
    assert!(lines.next().is_some(), "the page does not say \"{command}\"");
    let text = lines.skip_while(|line| !line.starts_with("```text")).skip(1);
    let shown: Vec<&str> = text.take_while(|line| *line != "```").collect();
    assert!(!shown.is_empty(), "the page does not show what \"{command}\" prints");
    shown.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::shown;

    const PAGE: &str =
        "```sh\ngo east # far\n```\n\n```text\none\ntwo\n```\n\n```sh\ngo west\n```\n";

    #[test]
    fn block_below_a_command_is_found() {
        assert_eq!(shown(PAGE, "go east"), "one\ntwo\n");
    }

    #[test]
    #[should_panic = "does not show"]
    fn command_without_a_block_is_told() {
        shown(PAGE, "go west");
    }
}
