//! JSON and time on the bare client's wire, with no value tree between.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

type BoxError = Box<dyn Error + Sync + Send>;

/// The version byte that `jsonb` has on the wire.
const JSONB_VERSION: u8 = 1;

/// JSON text as a `jsonb` parameter.
#[derive(Debug)]
pub(crate) struct Json<'a>(pub(crate) &'a str);

impl ToSql for Json<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, BoxError> {
        out.put_u8(JSONB_VERSION);
        out.put_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    accepts!(JSONB);
    to_sql_checked!();
}

/// A `jsonb` column as its bytes.
pub(crate) struct JsonBytes<'a>(pub(crate) &'a [u8]);

impl<'a> JsonBytes<'a> {
    /// The text behind the version byte.
    pub(crate) fn json(&self) -> &'a [u8] {
        self.0.get(1..).unwrap_or_default()
    }
}

impl<'a> FromSql<'a> for JsonBytes<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, BoxError> {
        Ok(JsonBytes(raw))
    }

    accepts!(JSONB);
}

/// A `timestamptz`: microseconds since the year 2000.
#[derive(Debug)]
pub(crate) struct Microseconds(pub(crate) i64);

impl ToSql for Microseconds {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, BoxError> {
        out.put_i64(self.0);
        Ok(IsNull::No)
    }

    accepts!(TIMESTAMPTZ);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for Microseconds {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, BoxError> {
        Ok(Microseconds(i64::from_be_bytes(raw.try_into()?)))
    }

    accepts!(TIMESTAMPTZ);
}
