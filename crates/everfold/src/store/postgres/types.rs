//! JSON and time as the server sends them, without a value tree between.

use std::borrow::Cow;
use std::error::Error;

use bytes::{BufMut, BytesMut};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

use crate::metadata::Metadata;

/// JSON text as a `jsonb` parameter.
#[derive(Debug)]
pub(super) struct JsonText<'a>(Cow<'a, str>);

impl<'a> JsonText<'a> {
    pub(super) fn new(json: &'a str) -> Self {
        JsonText(Cow::Borrowed(json))
    }

    pub(super) fn metadata(metadata: &Metadata) -> Self {
        if metadata.is_empty() {
            return JsonText(Cow::Borrowed("{}"));
        }
        JsonText(Cow::Owned(metadata.to_json()))
    }
}

/// The version byte that `jsonb` has on the wire.
const JSONB_VERSION: u8 = 1;

impl ToSql for JsonText<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.reserve(self.0.len() + 1);
        out.put_u8(JSONB_VERSION);
        out.put_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    accepts!(JSONB);
    to_sql_checked!();
}

/// A `jsonb` column as JSON text.
pub(super) struct JsonString(pub(super) String);

impl<'a> FromSql<'a> for JsonString {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        match raw.split_first() {
            Some((&JSONB_VERSION, text)) => Ok(JsonString(std::str::from_utf8(text)?.to_owned())),
            _ => Err("jsonb of an unknown version".into()),
        }
    }

    accepts!(JSONB);
}

/// A `timestamptz`: microseconds since the year 2000 on the wire.
pub(super) struct Time(pub(super) jiff::Timestamp);

const MICROSECONDS_TO_2000: i64 = 946_684_800_000_000;

impl<'a> FromSql<'a> for Time {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let since_2000 = i64::from_be_bytes(raw.try_into()?);
        let microseconds = since_2000.saturating_add(MICROSECONDS_TO_2000);
        Ok(Time(jiff::Timestamp::from_microsecond(microseconds)?))
    }

    accepts!(TIMESTAMPTZ);
}

impl ToSql for Time {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_i64(self.0.as_microsecond() - MICROSECONDS_TO_2000);
        Ok(IsNull::No)
    }

    accepts!(TIMESTAMPTZ);
    to_sql_checked!();
}

impl std::fmt::Debug for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A row of three bigints as one value of type `record`: the number of fields, then for each its
/// type, its length and its bytes.
pub(super) struct Bigints(pub(super) [i64; 3]);

impl<'a> FromSql<'a> for Bigints {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        const FIELD: usize = 4 + 4 + 8;
        if raw.len() != 4 + 3 * FIELD {
            return Err("a record that is not three bigints".into());
        }
        let mut fields = [0; 3];
        for (field, bytes) in fields.iter_mut().zip(raw[4..].chunks_exact(FIELD)) {
            *field = i64::from_be_bytes(bytes[8..].try_into()?);
        }
        Ok(Bigints(fields))
    }

    accepts!(RECORD);
}
