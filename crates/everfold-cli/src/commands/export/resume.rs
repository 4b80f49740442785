//! Going on with the file of an export that was stopped.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::{Context, anyhow};
use serde::Deserialize;

/// How much is read at once, from the end backwards.
const BLOCK_BYTES: u64 = 64 * 1024;

#[derive(Deserialize)]
struct LastLine {
    position: u64,
}

/// Opens the file behind its last complete line and returns the position in that line. What was
/// written of a line behind it is cut off.
pub(super) fn open(path: &Path) -> anyhow::Result<(File, Option<u64>)> {
    let shown = path.display();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .with_context(|| format!("cannot open {shown}"))?;
    let refused = || format!("cannot go on with {shown}");
    let (end, line) = last_complete_line(&mut file).with_context(refused)?;
    let last = match line {
        None => None,
        Some(line) => {
            let LastLine { position } = serde_json::from_slice(&line).map_err(|_| {
                anyhow!("the last line of {shown} is not an exported event; name another file")
            })?;
            Some(position)
        }
    };
    file.set_len(end).and_then(|()| file.seek(SeekFrom::End(0))).with_context(refused)?;
    Ok((file, last))
}

/// Where the last line break ends, and the line before it.
fn last_complete_line(file: &mut File) -> io::Result<(u64, Option<Vec<u8>>)> {
    let mut start = file.seek(SeekFrom::End(0))?;
    // All bytes from `start` on.
    let mut tail = Vec::new();
    loop {
        let mut breaks = tail.iter().rev().enumerate().filter(|(_, byte)| **byte == b'\n');
        let end = breaks.next().map(|(index, _)| tail.len() - index);
        let begin = breaks.next().map(|(index, _)| tail.len() - index);
        match (end, begin) {
            (Some(end), Some(begin)) => {
                return Ok((start + end as u64, Some(tail[begin..end].to_vec())));
            }
            (Some(end), None) if start == 0 => return Ok((end as u64, Some(tail[..end].to_vec()))),
            (None, _) if start == 0 => return Ok((0, None)),
            _ => {}
        }
        let block = BLOCK_BYTES.max(tail.len() as u64).min(start);
        start -= block;
        let mut longer = vec![0; block as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut longer)?;
        longer.append(&mut tail);
        tail = longer;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn resumed(content: &str) -> anyhow::Result<(String, Option<u64>)> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("events.jsonl");
        std::fs::write(&path, content)?;
        let (mut file, last) = open(&path)?;
        file.write_all(b"|")?;
        Ok((std::fs::read_to_string(&path)?, last))
    }

    #[test]
    fn half_written_line_is_cut_off_and_the_last_whole_one_is_kept() {
        let whole = "{\"position\":7}\n{\"position\":9}\n";
        assert_eq!(resumed(whole).unwrap(), (format!("{whole}|"), Some(9)));
        assert_eq!(resumed(&format!("{whole}{{\"posi")).unwrap(), (format!("{whole}|"), Some(9)));
        assert_eq!(
            resumed("{\"position\":7}\n{").unwrap(),
            ("{\"position\":7}\n|".into(), Some(7))
        );
        assert_eq!(resumed("{\"position\":7}").unwrap(), ("|".into(), None));
        assert_eq!(resumed("").unwrap(), ("|".into(), None));
    }

    #[test]
    fn lines_longer_than_a_block_are_found() {
        let long = format!("{{\"position\":5,\"data\":\"{}\"}}\n", "x".repeat(300_000));
        let content = format!("{{\"position\":4}}\n{long}{}", "y".repeat(200_000));
        let kept = format!("{{\"position\":4}}\n{long}|");
        assert_eq!(resumed(&content).unwrap(), (kept, Some(5)));
    }

    #[test]
    fn file_that_is_no_export_is_left_alone() {
        let error = resumed("name,price\nA1,3\n").unwrap_err().to_string();
        assert!(error.contains("not an exported event"), "{error}");
    }
}
