//! Rebuilds: building a read model again while appends go on, and switching readers over.
//!
//! ```text
//!   Store::rebuild, promote, rollback, replay ──> a row in `rebuilds` ──> whoever takes its lease:
//!       this process, or a runner that carries the projection
//!          └─ driver: make ─> copy history (parts, parallel) ─> indexes ─> catch up ─> compare ─> switch
//!                                                             batches: projection/job   job/switch
//! ```
//!
//! Everything that matters is in the database: whoever takes the lease next goes on where the last one
//! stopped.

pub(crate) mod compare;
mod drain;
pub(crate) mod driver;
pub(crate) mod fill;
pub(crate) mod folding;
mod handle;
pub(crate) mod holding;
pub(crate) mod options;
pub(crate) mod pace;
mod plan;
mod preview;
mod progress;
mod removal;
pub(crate) mod replay;
mod request;
pub(crate) mod row;
pub(crate) mod same;
pub(crate) mod snapshot;
pub(crate) mod verify;

pub use compare::{Comparison, Difference};
pub use handle::Rebuild;
pub use options::RebuildOptions;
pub use plan::{Plan, PlannedAction, PlannedChange, Retirable};
pub use preview::RebuildPreview;
pub use progress::RebuildProgress;
pub use removal::Retired;
pub use replay::ReplayOptions;
pub use row::{RebuildKind, RebuildPhase};
pub use snapshot::ReadModelSnapshot;
pub use verify::{Verification, VerifyOptions, VerifyScope};
