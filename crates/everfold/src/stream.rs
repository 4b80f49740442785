//! Streams: their names, and what an append expects of one.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Version;

/// Name of a stream, for example `cart-42`. Cheap to clone; its length is checked at the append.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StreamId(Arc<str>);

impl StreamId {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for StreamId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<&str> for StreamId {
    fn from(name: &str) -> Self {
        StreamId(name.into())
    }
}

impl From<String> for StreamId {
    fn from(name: String) -> Self {
        StreamId(name.into())
    }
}

impl From<&String> for StreamId {
    fn from(name: &String) -> Self {
        StreamId(name.as_str().into())
    }
}

impl From<&StreamId> for StreamId {
    fn from(stream: &StreamId) -> Self {
        stream.clone()
    }
}

/// What must hold of a stream for an append to it to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExpectedVersion {
    /// Whatever the stream's version is.
    Any,
    /// The stream must not exist.
    NoStream,
    /// The stream must exist, at any version.
    Exists,
    /// The stream must be at just this version; `Exact(Version(0))` is the same as `NoStream`.
    Exact(Version),
}

impl ExpectedVersion {
    /// As the SQL functions take it: `NULL` any, 0 no stream, -1 must exist, n exactly n.
    #[cfg(feature = "postgres")]
    pub(crate) fn to_stored(self) -> Option<i64> {
        match self {
            ExpectedVersion::Any => None,
            ExpectedVersion::NoStream => Some(0),
            ExpectedVersion::Exists => Some(-1),
            ExpectedVersion::Exact(version) => Some(version.to_stored()),
        }
    }

    /// Whether a stream at `actual` is what was expected.
    #[must_use]
    pub fn accepts(self, actual: Version) -> bool {
        match self {
            ExpectedVersion::Any => true,
            ExpectedVersion::NoStream => actual == Version::NONE,
            ExpectedVersion::Exists => actual > Version::NONE,
            ExpectedVersion::Exact(version) => actual == version,
        }
    }
}

impl From<Version> for ExpectedVersion {
    fn from(version: Version) -> Self {
        ExpectedVersion::Exact(version)
    }
}

impl fmt::Display for ExpectedVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExpectedVersion::Any => f.write_str("any version"),
            ExpectedVersion::NoStream | ExpectedVersion::Exact(Version(0)) => {
                f.write_str("no stream")
            }
            ExpectedVersion::Exists => f.write_str("an existing stream"),
            ExpectedVersion::Exact(version) => version.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expectation_accepts_only_what_it_names() {
        let cases = [
            (ExpectedVersion::Any, [true, true, true]),
            (ExpectedVersion::NoStream, [true, false, false]),
            (ExpectedVersion::Exists, [false, true, true]),
            (ExpectedVersion::Exact(Version(2)), [false, false, true]),
            (ExpectedVersion::Exact(Version(0)), [true, false, false]),
        ];
        for (expected, outcomes) in cases {
            let actual = [0, 1, 2].map(|version| expected.accepts(Version(version)));
            assert_eq!(actual, outcomes, "{expected:?}");
        }
    }
}
