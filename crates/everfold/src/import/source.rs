//! Reading an import's source: lines into chunks, starting behind what is committed.

use std::collections::HashSet;
use std::io::BufRead;

use tokio::sync::mpsc::Sender;
use uuid::Uuid;

use super::{ImportChunk, ImportLine, ImportOptions, ImportProgress};
use crate::error::ImportError;
use crate::options::Limits;

/// Longest line that is read at all, so that a file without line breaks cannot fill the memory.
const LINE_BYTES_MAX: u64 = 64 * 1024 * 1024;

pub(super) struct Reader {
    pub(super) name: String,
    pub(super) options: ImportOptions,
    pub(super) limits: Limits,
    pub(super) before: ImportProgress,
}

/// The chunk being collected.
struct Collected {
    lines: Vec<ImportLine>,
    bytes: usize,
    streams: HashSet<String>,
}

impl Reader {
    /// Sends chunk after chunk until the source ends. A line that cannot be taken ends it with an
    /// error, after the lines before it have been sent.
    pub(super) fn read(
        &self,
        mut source: impl BufRead,
        chunks: &Sender<Result<ImportChunk, ImportError>>,
    ) -> Result<(), ImportError> {
        let namespace = Uuid::new_v5(&Uuid::NAMESPACE_URL, self.name.as_bytes());
        let mut at = self.skip_committed(&mut source)?;
        let mut from_lines = at.lines;
        let mut collected = Collected::new();
        let mut text = Vec::new();
        let outcome = loop {
            let read = read_line(&mut source, &mut text, at.lines + 1)?;
            if read == 0 {
                break Ok(());
            }
            at.lines += 1;
            let line = match self.parse(&text, at.lines, &namespace) {
                Ok(line) => line,
                Err(error) => {
                    at.lines -= 1;
                    break Err(error);
                }
            };
            at.bytes += read;
            at.last_line_hash = hash(&text);
            if let Some(line) = line {
                collected.push(line, text.len());
            }
            if collected.is_full(&self.options)
                && !self.send(chunks, &mut from_lines, &at, &mut collected)
            {
                return Ok(());
            }
        };
        if at.lines > from_lines {
            self.send(chunks, &mut from_lines, &at, &mut collected);
        }
        outcome
    }

    /// `None` for an empty line.
    fn parse(
        &self,
        text: &[u8],
        number: u64,
        namespace: &Uuid,
    ) -> Result<Option<ImportLine>, ImportError> {
        let refuse = |message: String| ImportError::Line { line: number, message };
        let text = std::str::from_utf8(text).map_err(|error| refuse(error.to_string()))?.trim();
        if text.is_empty() {
            return Ok(None);
        }
        let mut line = ImportLine::parse(text, number, namespace, &self.limits).map_err(refuse)?;
        if self.options.renumber {
            line.version = None;
        }
        Ok(Some(line))
    }

    /// Hands the collected lines over; false when nobody wants them any more.
    fn send(
        &self,
        chunks: &Sender<Result<ImportChunk, ImportError>>,
        from_lines: &mut u64,
        at: &ImportProgress,
        collected: &mut Collected,
    ) -> bool {
        let collected = std::mem::replace(collected, Collected::new());
        let chunk = ImportChunk {
            name: self.name.clone(),
            from_lines: std::mem::replace(from_lines, at.lines),
            to: at.clone(),
            lines: collected.lines,
        };
        chunks.blocking_send(Ok(chunk)).is_ok()
    }

    /// Reads over what is committed, and sees to it that its last line is still the same.
    fn skip_committed(&self, source: &mut impl BufRead) -> Result<ImportProgress, ImportError> {
        let mut at = ImportProgress::default();
        let mut text = Vec::new();
        while at.lines < self.before.lines {
            let read = read_line(source, &mut text, at.lines + 1)?;
            if read == 0 {
                break;
            }
            at.lines += 1;
            at.bytes += read;
        }
        if at.lines > 0 {
            at.last_line_hash = hash(&text);
        }
        // Not the bytes: the last line may have got its line break since.
        if at.lines == self.before.lines && at.last_line_hash == self.before.last_line_hash {
            return Ok(at);
        }
        Err(ImportError::OtherSource { name: self.name.clone(), line: self.before.lines })
    }
}

impl Collected {
    fn new() -> Self {
        Collected { lines: Vec::new(), bytes: 0, streams: HashSet::new() }
    }

    fn push(&mut self, line: ImportLine, bytes: usize) {
        if !self.streams.contains(&line.stream_id) {
            self.streams.insert(line.stream_id.clone());
        }
        self.lines.push(line);
        self.bytes += bytes;
    }

    fn is_full(&self, options: &ImportOptions) -> bool {
        self.lines.len() >= options.chunk_events_max
            || self.bytes >= options.chunk_bytes_max
            || self.streams.len() >= options.chunk_streams_max
    }
}

/// Reads one line with its line break into `text`; 0 bytes at the end.
fn read_line(
    source: &mut impl BufRead,
    text: &mut Vec<u8>,
    number: u64,
) -> Result<u64, ImportError> {
    text.clear();
    let read = std::io::Read::take(&mut *source, LINE_BYTES_MAX).read_until(b'\n', text)? as u64;
    if read == LINE_BYTES_MAX {
        let message = format!("it has more than {LINE_BYTES_MAX} bytes");
        return Err(ImportError::Line { line: number, message });
    }
    Ok(read)
}

/// Without the line break: a last line may get one when the file grows.
fn hash(text: &[u8]) -> String {
    Uuid::new_v5(&Uuid::NAMESPACE_OID, text.trim_ascii_end()).to_string()
}
