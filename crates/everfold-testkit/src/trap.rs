//! What the proxy waits for in the bytes that clients send, and what it does then.

use crate::messages::Messages;

/// Waits for bytes or for a request from a client; goes off once.
#[derive(Debug)]
pub(crate) struct Trap {
    wait: Wait,
    then: Then,
}

#[derive(Debug)]
enum Wait {
    Pattern(Vec<u8>),
    /// So many requests, of all connections.
    Requests(u64),
    /// The same from a pattern on.
    RequestsAfter(Vec<u8>, u64),
}

/// What happens to the bytes that set a trap off, and to their connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// The server gets them, its answer is thrown away, the connection is closed.
    CutAfter,
    /// The connection is closed.
    CutBefore,
    /// The server gets them with another last byte, and the connection lives on.
    Spoil,
    /// They are held back, and everything else with them.
    Stall,
}

/// The bytes that set off a trap and were not forwarded yet.
pub(crate) struct Caught {
    pub(crate) bytes: Vec<u8>,
    /// Where in the bytes the request begins that is caught; those before it are not.
    pub(crate) start: usize,
    /// Where in the bytes the pattern or the request ends.
    pub(crate) pattern_end: usize,
    pub(crate) then: Then,
    /// All connections are lost with this one.
    pub(crate) loses_all: bool,
}

impl Trap {
    pub(crate) fn for_pattern(pattern: &[u8], then: Then) -> Trap {
        Trap { wait: Wait::Pattern(pattern.to_owned()), then }
    }

    pub(crate) fn for_request(number: u64, then: Then) -> Trap {
        Trap { wait: Wait::Requests(number.max(1)), then }
    }

    pub(crate) fn for_request_after(pattern: &[u8], number: u64, then: Then) -> Trap {
        Trap { wait: Wait::RequestsAfter(pattern.to_owned(), number.max(1)), then }
    }

    /// What is caught if `bytes`, which come after `earlier`, complete what it waits for.
    pub(crate) fn spring(
        &mut self,
        earlier: &[u8],
        bytes: &[u8],
        messages: &Messages,
    ) -> Option<Caught> {
        let (start, pattern_end) = match &mut self.wait {
            Wait::Pattern(pattern) => (0, end_of(pattern, earlier, bytes)?),
            Wait::RequestsAfter(pattern, number) => {
                end_of(pattern, earlier, bytes)?;
                self.wait = Wait::Requests(*number);
                return None;
            }
            Wait::Requests(left) => {
                let ends = messages.clone().request_ends(bytes);
                let at = usize::try_from(*left - 1).unwrap_or(usize::MAX);
                let Some(&end) = ends.get(at) else {
                    *left -= ends.len() as u64;
                    return None;
                };
                (at.checked_sub(1).map_or(0, |before| ends[before]), end)
            }
        };
        let loses_all = matches!(self.wait, Wait::Requests(_)) && self.then != Then::Stall;
        let (bytes, then) = (bytes.to_owned(), self.then);
        Some(Caught { bytes, start, pattern_end, then, loses_all })
    }
}

/// Where in `bytes` the first `pattern` ends that may have begun in `earlier`.
fn end_of(pattern: &[u8], earlier: &[u8], bytes: &[u8]) -> Option<usize> {
    let overlap = earlier.len().min(pattern.len() - 1);
    let recent = [&earlier[earlier.len() - overlap..], bytes].concat();
    let mut windows = recent.windows(pattern.len());
    let start = windows.position(|window| window == pattern)?;
    Some(start + pattern.len() - overlap)
}

#[cfg(test)]
mod tests {
    use super::{Then, Trap, end_of};
    use crate::messages::Messages;

    #[test]
    fn pattern_is_found_across_chunks() {
        assert_eq!(end_of(b"COMMIT", b"", b"Q....COMMIT\0"), Some(11));
        assert_eq!(end_of(b"COMMIT", b"Q....COM", b"MIT\0"), Some(3));
        assert_eq!(end_of(b"COMMIT", b"Q....COM", b"PARE\0"), None);
    }

    #[test]
    fn pattern_that_passed_earlier_is_not_found_again() {
        assert_eq!(end_of(b"COMMIT", b"Q....COMMIT", b"\0"), None);
        assert_eq!(end_of(b"x", b"x", b"x"), Some(1));
        assert_eq!(end_of(b"x", b"x", b"y"), None);
    }

    #[test]
    fn requests_are_counted_wherever_they_end() {
        let mut messages = Messages::default();
        messages.request_ends(b"\0\0\0\x0e\0\x03\0\0QSQS\0\0");
        let sync = b"S\0\0\0\x04";
        let mut trap = Trap::for_request(4, Then::CutBefore);
        assert!(trap.spring(b"", sync, &messages).is_none());
        let two = [&sync[..], sync].concat();
        assert!(trap.spring(b"", &two, &messages).is_none());
        let caught = trap.spring(b"", &two, &messages).expect("the fourth is in it");
        assert_eq!((caught.start, caught.pattern_end), (0, sync.len()));
        let mut trap = Trap::for_request(2, Then::CutAfter);
        let caught = trap.spring(b"", &two, &messages).expect("the second is in it");
        assert_eq!((caught.start, caught.pattern_end), (sync.len(), two.len()));
    }
}
