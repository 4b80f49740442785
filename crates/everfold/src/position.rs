//! Places in the log: [`Position`] in the global order, [`Version`] inside one stream.
//!
//! They are types of their own so that one cannot be taken for the other.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Place of an event in the global order, from 1. Positions rise but have gaps: an append that
/// was rolled back leaves its numbers unused.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Position(pub u64);

impl Position {
    /// Before the first event.
    pub const START: Position = Position(0);
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Place of an event inside its stream: 1, 2, 3 … without gaps. A stream's own version is that of
/// its last event, and 0 while it does not exist.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Version(pub u64);

impl Version {
    /// The version of a stream that does not exist.
    pub const NONE: Version = Version(0);

    /// The version after this one.
    #[must_use]
    pub fn next(self) -> Version {
        Version(self.0 + 1)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Both stores keep these numbers as signed 64-bit integers that are never negative.
macro_rules! as_stored {
    ($($name:ident),*) => {$(
        impl $name {
            /// The stores keep no negative ones; whatever else somebody put there counts as none.
            pub(crate) fn from_stored(value: i64) -> Self {
                Self(u64::try_from(value).unwrap_or(0))
            }

            /// Numbers past the signed range do not exist in a store; the last one stands for them.
            pub(crate) fn to_stored(self) -> i64 {
                i64::try_from(self.0).unwrap_or(i64::MAX)
            }
        }
    )*};
}
as_stored!(Position, Version);
