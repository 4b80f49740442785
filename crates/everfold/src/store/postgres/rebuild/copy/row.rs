//! Rows of the log as binary COPY has them, read without making anything that is not kept.

use bytes::{Buf, Bytes};

use crate::error::{StoreError, StoreErrorKind};
use crate::{Position, RecordedEvent, StreamId, Uuid, Version};

/// What a COPY begins with, before flags and an extension.
const SIGNATURE: &[u8; 11] = b"PGCOPY\n\xff\r\n\0";
const MICROSECONDS_TO_2000: i64 = 946_684_800_000_000;

/// The columns, in the order in which [`Row::read_into`] wants them.
pub(super) const COLUMNS: &str =
    "position, {hash}, version, schema_version, recorded_at, id, stream_id, type, data, metadata";

/// What is left of the first piece behind the header.
pub(super) fn after_header(mut piece: Bytes) -> Result<Bytes, StoreError> {
    if piece.len() < SIGNATURE.len() + 8 || !piece.starts_with(SIGNATURE) {
        return Err(unreadable());
    }
    piece.advance(SIGNATURE.len() + 4);
    let extension = piece.get_u32() as usize;
    if piece.len() < extension {
        return Err(unreadable());
    }
    piece.advance(extension);
    Ok(piece)
}

/// Whether it is a row, and not the end.
pub(super) fn is_row(piece: &[u8]) -> bool {
    piece.len() >= 2 && piece[..2] != [0xff, 0xff]
}

/// The hash of a row, which stands behind its position.
pub(super) fn hash(row: &[u8]) -> u32 {
    let at = 2 + 4 + 8 + 4;
    row.get(at..at + 4)
        .map_or(0, |bytes| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// An event to read rows into, one after the other.
pub(super) fn blank() -> RecordedEvent {
    RecordedEvent {
        position: Position::START,
        stream_id: StreamId::from(""),
        version: Version(0),
        id: Uuid::nil(),
        event_type: String::new(),
        schema_version: 1,
        data: String::new(),
        metadata: String::new(),
        recorded_at: jiff::Timestamp::UNIX_EPOCH,
    }
}

/// Reads a row into an event, whose memory is used again, and returns its hash.
pub(super) fn read_into(event: &mut RecordedEvent, row: &[u8]) -> Result<u32, StoreError> {
    try_read_into(event, row).ok_or_else(unreadable)
}

fn try_read_into(event: &mut RecordedEvent, row: &[u8]) -> Option<u32> {
    let mut fields = Fields(row.get(2..)?);
    event.position = Position::from_stored(fields.bigint()?);
    let hash = fields.integer()?.cast_unsigned();
    event.version = Version::from_stored(fields.bigint()?);
    event.schema_version = fields.integer()?.unsigned_abs();
    let recorded_at = fields.bigint()?.saturating_add(MICROSECONDS_TO_2000);
    event.recorded_at = jiff::Timestamp::from_microsecond(recorded_at).ok()?;
    event.id = Uuid::from_slice(fields.next()?).ok()?;
    let stream_id = fields.text()?;
    // Events of one stream often stand together.
    if event.stream_id.as_str() != stream_id {
        event.stream_id = StreamId::from(stream_id);
    }
    put(&mut event.event_type, fields.text()?);
    put(&mut event.data, fields.json()?);
    put(&mut event.metadata, fields.json()?);
    Some(hash)
}

fn put(to: &mut String, text: &str) {
    to.clear();
    to.push_str(text);
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The next field; none of ours is ever NULL.
    fn next(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.0.split_first_chunk::<4>()?;
        let length = usize::try_from(i32::from_be_bytes(*length)).ok()?;
        let (field, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some(field)
    }

    fn bigint(&mut self) -> Option<i64> {
        Some(i64::from_be_bytes(self.next()?.try_into().ok()?))
    }

    fn integer(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.next()?.try_into().ok()?))
    }

    fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.next()?).ok()
    }

    /// `jsonb` has the number of its version, 1, in front.
    fn json(&mut self) -> Option<&'a str> {
        match self.next()?.split_first()? {
            (1, text) => std::str::from_utf8(text).ok(),
            _ => None,
        }
    }
}

fn unreadable() -> StoreError {
    let message = "the server sent rows of the log in a form that is not known";
    StoreError::new(StoreErrorKind::Other, message)
}
