//! The events that are appended, imported and read: made from their number, the same every time.

use std::io::{self, BufRead, Read, Write};

use jiff::Timestamp;
use serde::Deserialize;
use uuid::Uuid;

/// Events of one stream.
pub(crate) const STREAM_EVENTS: u64 = 10;
/// Streams that are alive at the same time where streams come and go.
const ALIVE_STREAMS: u64 = 250;
/// One event in so many is of [`RARE_TYPE`].
pub(crate) const RARE_EVERY: u64 = 1_000;
pub(crate) const RARE_TYPE: &str = "CheckedOut";
pub(crate) const APPENDED_TYPE: &str = "ItemAdded";
/// 2026-01-01T00:00:00Z, in milliseconds.
const START: u64 = 1_767_225_600_000;
const EVENTS_PER_MILLISECOND: u64 = 50;
const MICROSECONDS_TO_2000: i64 = 946_684_800_000_000;

/// The events as a reader's own type.
#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "that its fields are decoded is what is measured")]
pub(crate) enum ShopEvent {
    ItemAdded { sku: String, quantity: u32, price_cents: u64, note: String },
    ItemRemoved { sku: String, quantity: u32, reason: String },
    CheckedOut { total_cents: u64, payment: String, address: String },
}

/// In which order streams get their events.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Layout {
    /// A few hundred streams at a time take turns until they are done, then others follow.
    ComeAndGo,
    /// All streams take turns from the first event to the last.
    AllAtOnce,
}

/// A history of a given length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    pub(crate) events: u64,
    pub(crate) layout: Layout,
}

/// One event of it. Texts are JSON where the column is.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) stream_id: String,
    pub(crate) version: i64,
    pub(crate) event_type: &'static str,
    pub(crate) data: String,
    pub(crate) metadata: String,
    pub(crate) id: Uuid,
    pub(crate) recorded_at: Timestamp,
}

impl Event {
    pub(crate) fn recorded_at_since_2000(&self) -> i64 {
        self.recorded_at.as_microsecond() - MICROSECONDS_TO_2000
    }
}

impl Workload {
    pub(crate) fn streams(&self) -> u64 {
        self.events.div_ceil(STREAM_EVENTS)
    }

    pub(crate) fn rare_events(&self) -> u64 {
        self.events / RARE_EVERY
    }

    pub(crate) fn events(self) -> impl Iterator<Item = Event> {
        (0..self.events).map(move |number| self.event(number))
    }

    fn event(&self, number: u64) -> Event {
        let (stream, version) = self.place(number);
        let (event_type, data) = content(number);
        let milliseconds = START + number / EVENTS_PER_MILLISECOND;
        let mut random = [0; 10];
        random[..8].copy_from_slice(&number.to_be_bytes());
        random[8..].copy_from_slice(&(mixed(number) as u16).to_be_bytes());
        Event {
            stream_id: format!("cart-{stream:08}"),
            version: i64::try_from(version).expect("versions are small"),
            event_type,
            data,
            metadata: format!(r#"{{"correlation_id":"request-{}"}}"#, number / 3),
            id: uuid::Builder::from_unix_timestamp_millis(milliseconds, &random).into_uuid(),
            recorded_at: Timestamp::from_millisecond(milliseconds.cast_signed())
                .expect("a time in this century"),
        }
    }

    /// Which stream, and which version in it.
    fn place(&self, number: u64) -> (u64, u64) {
        let (first_stream, number, streams) = match self.layout {
            Layout::AllAtOnce => (0, number, self.streams()),
            Layout::ComeAndGo => {
                let block = number / (ALIVE_STREAMS * STREAM_EVENTS);
                (block * ALIVE_STREAMS, number % (ALIVE_STREAMS * STREAM_EVENTS), ALIVE_STREAMS)
            }
        };
        (first_stream + number % streams, number / streams + 1)
    }
}

/// Type and data, about 100 bytes.
fn content(number: u64) -> (&'static str, String) {
    let random = mixed(number);
    let (sku, cents) = (random % 5_000, random % 100_000);
    if number % RARE_EVERY == RARE_EVERY - 1 {
        let data = format!(
            r#"{{"total_cents":{cents},"payment":"card","address":"{sku} Long Meadow Lane, 12345 Springfield"}}"#
        );
        return (RARE_TYPE, data);
    }
    if number % 4 == 3 {
        let data = format!(
            r#"{{"sku":"sku-{sku:05}","quantity":1,"reason":"found it somewhere else for {cents} cents"}}"#
        );
        return ("ItemRemoved", data);
    }
    (APPENDED_TYPE, item_added(random))
}

fn item_added(random: u64) -> String {
    let (sku, quantity, cents) = (random % 5_000, random % 9 + 1, random % 100_000);
    format!(
        r#"{{"sku":"sku-{sku:05}","quantity":{quantity},"price_cents":{cents},"note":"leave it at the door, please"}}"#
    )
}

/// The number's bits well mixed (splitmix64).
fn mixed(number: u64) -> u64 {
    let mut bits = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// A stream nobody has appended to.
pub(crate) fn new_stream() -> String {
    format!("cart-{}", Uuid::now_v7())
}

/// Data of an event of [`APPENDED_TYPE`].
pub(crate) fn new_data() -> String {
    item_added(Uuid::now_v7().as_u64_pair().1)
}

/// The history as JSON lines, made as they are read.
pub(crate) struct Lines {
    workload: Workload,
    next: u64,
    buffer: Vec<u8>,
    consumed: usize,
}

const BUFFER_BYTES: usize = 64 * 1024;

impl Lines {
    pub(crate) fn new(workload: Workload) -> Lines {
        Lines { workload, next: 0, buffer: Vec::new(), consumed: 0 }
    }

    fn write_next(&mut self) -> io::Result<()> {
        let event = self.workload.event(self.next);
        self.next += 1;
        writeln!(
            self.buffer,
            r#"{{"stream_id":"{}","version":{},"type":"{}","schema_version":1,"data":{},"metadata":{},"id":"{}","recorded_at":"{:.6}"}}"#,
            event.stream_id,
            event.version,
            event.event_type,
            event.data,
            event.metadata,
            event.id,
            event.recorded_at,
        )
    }
}

impl BufRead for Lines {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.consumed == self.buffer.len() {
            self.buffer.clear();
            self.consumed = 0;
            while self.next < self.workload.events && self.buffer.len() < BUFFER_BYTES {
                self.write_next()?;
            }
        }
        Ok(&self.buffer[self.consumed..])
    }

    fn consume(&mut self, bytes: usize) {
        self.consumed += bytes;
    }
}

impl Read for Lines {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let available = self.fill_buf()?;
        let bytes = available.len().min(into.len());
        into[..bytes].copy_from_slice(&available[..bytes]);
        self.consume(bytes);
        Ok(bytes)
    }
}
