//! Standard output: results, and nothing else.

use std::fmt;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

use console::Term;
use indicatif::HumanCount;
use serde::Serialize;

/// Nobody reads our output any more, as when `head` has its lines. An end, not a failure.
#[derive(Debug)]
pub(crate) struct StdoutClosed;

impl fmt::Display for StdoutClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("standard output was closed")
    }
}

impl std::error::Error for StdoutClosed {}

/// Buffered standard output. What is written is safe after [`flush`](Output::flush) only.
pub(crate) struct Output {
    writer: BufWriter<Stdout>,
}

impl Output {
    pub(crate) fn new() -> Output {
        Output { writer: BufWriter::with_capacity(64 * 1024, io::stdout()) }
    }

    /// Writes a line.
    pub(crate) fn line(&mut self, text: impl fmt::Display) -> anyhow::Result<()> {
        writeln!(self.writer, "{text}").map_err(refused)
    }

    /// Writes a value as one line of JSON.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> anyhow::Result<()> {
        let text = serde_json::to_string(value)?;
        self.line(text)
    }

    pub(crate) fn flush(&mut self) -> anyhow::Result<()> {
        self.writer.flush().map_err(refused)
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// The failure of a write to standard output.
pub(crate) fn refused(error: io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return StdoutClosed.into();
    }
    anyhow::Error::new(error).context("standard output cannot be written")
}

/// Prints the one result of a command: as JSON, or as lines of text.
pub(crate) fn print<T: Serialize + fmt::Display>(result: &T, json: bool) -> anyhow::Result<()> {
    let mut output = Output::new();
    if json {
        output.json(result)?;
    } else {
        output.line(result)?;
    }
    output.flush()
}

/// How many columns a line of output may have, if it is a terminal that shows it.
pub(crate) fn terminal_width() -> Option<usize> {
    if !io::stdout().is_terminal() {
        return None;
    }
    Some(Term::stdout().size_checked().map_or(80, |(_, columns)| usize::from(columns)))
}

/// Text from outside as it may be shown on a terminal: one line, no control characters.
pub(crate) fn shown(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            safe.extend(character.escape_default());
        } else {
            safe.push(character);
        }
    }
    safe
}

/// `1 event`, `2,000 events`.
pub(crate) fn count(number: u64, what: &str) -> String {
    let shown = HumanCount(number);
    match (number, what.strip_suffix('y')) {
        (1, _) => format!("1 {what}"),
        (_, Some(begin)) => format!("{shown} {begin}ies"),
        _ => format!("{shown} {what}s"),
    }
}

/// `1 differs`, `2 differ`.
pub(crate) fn differ(number: u64) -> String {
    match number {
        1 => "1 differs".to_owned(),
        _ => format!("{} differ", HumanCount(number)),
    }
}

#[cfg(test)]
mod tests {
    use super::{count, shown};

    #[test]
    fn one_thing_is_told_from_many() {
        assert_eq!(count(0, "event"), "0 events");
        assert_eq!(count(1, "event"), "1 event");
        assert_eq!(count(12_345, "row"), "12,345 rows");
        assert_eq!((count(1, "try"), count(2, "try")), ("1 try".into(), "2 tries".into()));
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(shown("cart-1\u{1b}[2J\n"), "cart-1\\u{1b}[2J\\n");
        assert_eq!(shown("Größe 42"), "Größe 42");
    }
}
