//! Finds where a PostgreSQL client's messages end in the bytes it sends.
//!
//! The first message has a length and a code; it repeats after a request for encryption, which our
//! servers decline. Each later one has a type, then a length that counts itself but not the type.

const ENCRYPTION_REQUESTS: [u32; 2] = [80_877_103, 80_877_104];

/// Follows one connection from its first byte on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Messages {
    header: Vec<u8>,
    /// Bytes that the current message still lacks.
    body_left: usize,
    /// Type of the current message; none before the connection has begun.
    kind: Option<u8>,
    begun: bool,
}

impl Messages {
    /// Takes the next bytes and gives the offsets in them at which a request ends: after it the
    /// server works and answers, and says that it waits for the next one.
    pub(crate) fn request_ends(&mut self, bytes: &[u8]) -> Vec<usize> {
        let mut ends = Vec::new();
        let mut offset = 0;
        while offset < bytes.len() {
            let ended = if self.body_left > 0 {
                let count = self.body_left.min(bytes.len() - offset);
                offset += count;
                self.body_left -= count;
                self.body_left == 0
            } else {
                self.header.push(bytes[offset]);
                offset += 1;
                self.header_is_complete() && self.body_left == 0
            };
            // Query, Sync and FunctionCall.
            if ended && matches!(self.kind, Some(b'Q' | b'S' | b'F')) {
                ends.push(offset);
            }
        }
        ends
    }

    /// Takes over a complete header and starts the next one.
    fn header_is_complete(&mut self) -> bool {
        match self.header[..] {
            [kind, a, b, c, d] if self.begun => {
                self.kind = Some(kind);
                self.body_left = length(&[a, b, c, d]).saturating_sub(4);
            }
            [a, b, c, d, e, f, g, h] => {
                self.begun = !ENCRYPTION_REQUESTS.contains(&u32::from_be_bytes([e, f, g, h]));
                self.body_left = length(&[a, b, c, d]).saturating_sub(8);
            }
            _ => return false,
        }
        self.header.clear();
        true
    }
}

fn length(bytes: &[u8; 4]) -> usize {
    u32::from_be_bytes(*bytes) as usize
}

#[cfg(test)]
mod tests {
    use super::Messages;

    const ENCRYPTION_REQUEST: &[u8] = b"\0\0\0\x08\x04\xd2\x16\x2f";
    const STARTUP: &[u8] = b"\0\0\0\x0e\0\x03\0\0QSQS\0\0";
    const QUERY: &[u8] = b"Q\0\0\0\x0bCOMMIT\0";
    const PARSE: &[u8] = b"P\0\0\0\x0e\0COMMIT\0\0\0";
    const SYNC: &[u8] = b"S\0\0\0\x04";

    #[test]
    fn request_ends_with_query_or_sync() {
        let sent = [ENCRYPTION_REQUEST, STARTUP, QUERY, PARSE, SYNC].concat();
        let ends = [sent.len() - SYNC.len() - PARSE.len(), sent.len()];
        assert_eq!(Messages::default().request_ends(&sent), ends);
    }

    #[test]
    fn request_ends_are_the_same_however_bytes_arrive() {
        let sent = [STARTUP, PARSE, SYNC, QUERY, QUERY].concat();
        let whole = Messages::default().request_ends(&sent);
        assert_eq!(whole.len(), 3);
        for size in 1..sent.len() {
            let mut messages = Messages::default();
            let mut ends = Vec::new();
            for (index, chunk) in sent.chunks(size).enumerate() {
                ends.extend(messages.request_ends(chunk).iter().map(|end| index * size + end));
            }
            assert_eq!(ends, whole, "chunks of {size}");
        }
    }
}
