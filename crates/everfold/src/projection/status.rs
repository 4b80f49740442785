//! Where projections stand, for people and for programs.

use std::collections::HashMap;

use jiff::Timestamp;
use serde::Serialize;

use super::definition::{Lifecycle, ProjectionKind};
use super::generation::{
    Generation, GenerationState, GenerationStatus, LastVerification, ShardState,
};
use super::registry::past_the_end;
use crate::Position;
use crate::error::ProjectionError;
use crate::rebuild::fill::unfilled;
use crate::store::{Heads, Store};

/// A projection as it stands at one moment. There is one for each generation that is not retired: a
/// version that is built beside another has its own.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ProjectionStatus {
    /// The namespace; empty for the default one.
    pub namespace: String,
    /// The projection's name.
    pub name: String,
    /// Its version.
    pub version: u32,
    /// How it is written.
    pub kind: ProjectionKind,
    /// When its events are applied.
    pub lifecycle: Lifecycle,
    /// Where it stands.
    pub status: GenerationStatus,
    /// Why, if that needs saying.
    pub reason: Option<String>,
    /// Since when.
    pub status_since: Timestamp,
    /// Whether readers see it.
    pub active: bool,
    /// Everything that it wants up to here is applied, owed (`open_skips`) or put aside
    /// (`dead_letters`). For an active inline projection that is the high-water mark.
    pub position: Position,
    /// The high-water mark.
    pub mark: Position,
    /// The highest position that can be seen; the mark is behind it while appends are in flight.
    pub highest: Position,
    /// Events it wants and does not have yet, counted up to a bound.
    pub lag_events: u64,
    /// Age of the oldest of them in seconds; 0 if there is none.
    pub lag_seconds: f64,
    /// Events a second over the last minute.
    pub rate: f64,
    /// Whether it comes nearer.
    pub trend: Trend,
    /// In about how many seconds it will have caught up, if it comes nearer.
    pub seconds_left: Option<f64>,
    /// Its shards.
    pub shards: Vec<ShardStatus>,
    /// Events that an inline projection owes.
    pub open_skips: u64,
    /// Since when the oldest of them is owed.
    pub oldest_skip: Option<Timestamp>,
    /// Age of that in seconds.
    pub oldest_skip_seconds: Option<f64>,
    /// Events that could not be applied.
    pub dead_letters: u64,
    /// Events that wait behind those.
    pub held_events: u64,
    /// Since when the oldest dead letter is there.
    pub oldest_dead_letter: Option<Timestamp>,
    /// Age of that in seconds.
    pub oldest_dead_letter_seconds: Option<f64>,
    /// Thresholds of its settings, in seconds.
    pub lag_warn_seconds: Option<f64>,
    /// Thresholds of its settings, in seconds.
    pub lag_fail_seconds: Option<f64>,
    /// The last verification of it, if there was one: whether it has drifted from the log.
    pub verified: Option<LastVerification>,
}

/// Whether a projection comes nearer to the end of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Trend {
    /// Nothing to do, and nothing was done in the last minute.
    Idle,
    /// Keeps up.
    Steady,
    /// Behind, and coming nearer.
    CatchingUp,
    /// Behind, and getting further behind.
    FallingBehind,
    /// Behind, and nothing was done in the last minute.
    Standing,
}

impl Trend {
    /// In words.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Trend::Idle => "idle",
            Trend::Steady => "steady",
            Trend::CatchingUp => "catching up",
            Trend::FallingBehind => "falling behind",
            Trend::Standing => "standing",
        }
    }
}

impl std::fmt::Display for Trend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// One shard of a projection.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ShardStatus {
    /// Its number, from 0.
    pub shard: u32,
    /// How far it has come.
    pub position: Position,
    /// The name of the worker that runs it, if one lives.
    pub owner: Option<String>,
    /// Since when that worker runs.
    pub owner_since: Option<Timestamp>,
    /// The worker that has the lease, also if it has not been heard of for too long.
    pub last_owner: Option<String>,
    /// When the lease ends unless it is prolonged; in the past if its worker has gone silent.
    pub lease_expires_at: Option<Timestamp>,
    /// When it last moved.
    pub moved_at: Timestamp,
    /// Failed tries in a row of what comes next.
    pub attempts: u32,
    /// The last failure, if it has not moved since.
    pub failure: Option<String>,
}

impl Store {
    /// Where all projections of this handle's namespace stand: by name, and of one projection the
    /// generation that was made first.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = with_carts().await;
    /// for projection in store.projections().await? {
    ///     println!("{} {}: {}", projection.name, projection.version, projection.status);
    ///     assert_eq!(projection.lag_events, 0);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ProjectionError::Store`] if the database refuses or cannot be reached.
    pub async fn projections(&self) -> Result<Vec<ProjectionStatus>, ProjectionError> {
        let states = self.with_fills(self.backend().states().await?).await?;
        let heads = self.backend().heads().await?;
        let namespace = &self.options().namespace;
        let here = states.into_iter().filter(|state| state.generation.namespace == *namespace);
        let mut all: Vec<_> = here.map(|state| ProjectionStatus::new(state, heads)).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(all)
    }

    /// Where one projection stands: the version that readers see, else the newest.
    ///
    /// ```
    /// use everfold::GenerationStatus;
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = with_carts().await;
    /// let carts = store.projection("carts").await?;
    /// assert_eq!((carts.version, carts.status), (1, GenerationStatus::Active));
    /// assert_eq!(carts.position, carts.mark); // it has everything there is
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ProjectionError::Unknown`] if there is none of that name, with one like it if there is one.
    pub async fn projection(&self, name: &str) -> Result<ProjectionStatus, ProjectionError> {
        let mut all = self.projections().await?;
        let meant = |status: &ProjectionStatus| (status.name == name).then_some(status.active);
        let found = all.iter().enumerate().filter_map(|(i, s)| meant(s).map(|active| (active, i)));
        match found.max() {
            Some((_, index)) => Ok(all.swap_remove(index)),
            None => Err(super::registry::unknown(name, all.iter().map(|s| s.name.as_str()))),
        }
    }
}

impl Store {
    /// Of a projection that waits for its first fill there is one in the registry, and one that is
    /// filled: the latter counts. What became of a fill that did not end well is said.
    async fn with_fills(
        &self,
        mut states: Vec<GenerationState>,
    ) -> Result<Vec<GenerationState>, ProjectionError> {
        let unfilled = unfilled(states.iter().map(|state| &state.generation));
        if unfilled.is_empty() {
            return Ok(states);
        }
        let fills = self.fills().await?;
        let mut newest: HashMap<(String, String, u32), i32> = HashMap::new();
        let identity = |g: &Generation| (g.namespace.clone(), g.name.clone(), g.version);
        for GenerationState { generation, .. } in &mut states {
            if !unfilled.contains(&generation.id) {
                continue;
            }
            if let Some(left_alone) = fills.left_alone(generation) {
                generation.reason = Some(left_alone.reason);
            }
            // In the order of their ids.
            newest.insert(identity(generation), generation.id);
        }
        states.retain(|GenerationState { generation, .. }| {
            !unfilled.contains(&generation.id)
                || newest.get(&identity(generation)) == Some(&generation.id)
        });
        Ok(states)
    }
}

impl ProjectionStatus {
    fn new(state: GenerationState, heads: Heads) -> Self {
        let inline = state.generation.lifecycle == Lifecycle::Inline;
        let age = |since: Timestamp| (heads.now.duration_since(since).as_secs_f64()).max(0.0);
        let lowest = state.shards.iter().map(|shard| shard.position).min().unwrap_or_default();
        // Appends feed an active inline projection: its checkpoint stands still.
        let fed_by_appends = inline && !is_fed_from_log(state.generation.status);
        let (position, lag_events, behind_since) = match fed_by_appends {
            true => (heads.mark, state.open_skips, state.oldest_skip),
            false => (lowest, state.behind_events, state.behind_since),
        };
        let lag_seconds = behind_since.filter(|_| lag_events > 0).map_or(0.0, age);
        let rate = state.recent_events as f64 / 60.0;
        let (trend, seconds_left) = trend(&state, lag_events, lag_seconds);
        let ahead = state.shards.iter().map(|shard| shard.position).max().unwrap_or_default();
        let GenerationState { generation, .. } = state;
        let reason = match generation.status {
            GenerationStatus::Failed => generation.reason,
            _ => past_the_end(&generation, ahead, heads.highest).or(generation.reason),
        };
        ProjectionStatus {
            namespace: generation.namespace,
            name: generation.name,
            version: generation.version,
            kind: generation.kind,
            lifecycle: generation.lifecycle,
            status: generation.status,
            reason,
            status_since: state.status_since,
            active: generation.is_active,
            position,
            mark: heads.mark,
            highest: heads.highest,
            lag_events,
            lag_seconds,
            rate,
            trend,
            seconds_left,
            shards: state.shards.into_iter().map(ShardStatus::new).collect(),
            open_skips: state.open_skips,
            oldest_skip: state.oldest_skip,
            oldest_skip_seconds: state.oldest_skip.map(age),
            dead_letters: state.dead_letters,
            held_events: state.held_events,
            oldest_dead_letter: state.oldest_dead_letter,
            oldest_dead_letter_seconds: state.oldest_dead_letter.map(age),
            lag_warn_seconds: generation.settings.lag_warn.map(|lag| lag.as_secs_f64()),
            lag_fail_seconds: generation.settings.lag_fail.map(|lag| lag.as_secs_f64()),
            verified: state.verified,
        }
    }
}

impl ShardStatus {
    fn new(state: ShardState) -> Self {
        ShardStatus {
            shard: state.shard,
            position: state.position,
            owner_since: state.owner_since.filter(|_| state.owner_name.is_some()),
            owner: state.owner_name,
            last_owner: state.last_owner,
            lease_expires_at: state.expires_at,
            moved_at: state.moved_at,
            attempts: state.attempts,
            failure: state.failure,
        }
    }
}

/// `1 event`, `2 events`.
pub(super) fn counted(number: u64, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}

/// A lag shorter than this is what a projection that keeps up has.
const STEADY_SECONDS: f64 = 1.0;

/// Whether an inline generation that stands like this is fed from the log: it is being filled, or kept
/// to go back to.
fn is_fed_from_log(status: GenerationStatus) -> bool {
    use GenerationStatus::{Building, Kept, Rebuilding};
    matches!(status, Building | Kept | Rebuilding)
}

/// Whether anybody applies events to it now, whatever it did a minute ago. An inline one that is
/// building waits for its backfill.
fn is_fed(generation: &Generation) -> bool {
    match generation.status {
        GenerationStatus::Paused | GenerationStatus::Failed | GenerationStatus::Retired => false,
        GenerationStatus::Building => generation.lifecycle == Lifecycle::CatchUp,
        _ => true,
    }
}

/// What arrives is taken from what has arrived since the oldest event that is missing; what can be
/// done, from what the batches of the last minute did while they ran.
fn trend(state: &GenerationState, lag_events: u64, lag_seconds: f64) -> (Trend, Option<f64>) {
    if lag_events == 0 {
        let idle = state.recent_events == 0;
        return (if idle { Trend::Idle } else { Trend::Steady }, None);
    }
    if !is_fed(&state.generation) {
        return (Trend::Standing, None);
    }
    if lag_seconds < STEADY_SECONDS {
        return (Trend::Steady, None);
    }
    let running = state.shards.iter().filter(|shard| shard.owner_name.is_some()).count();
    // Appends settle what an inline one owes, also where nobody runs it.
    let nobody = running == 0 && state.generation.lifecycle == Lifecycle::CatchUp;
    if nobody || state.recent_events == 0 {
        return (Trend::Standing, None);
    }
    let running = running.max(1);
    let applied = state.recent_events as f64 / state.recent_seconds.max(0.001) * running as f64;
    let arriving = lag_events as f64 / lag_seconds;
    match applied > arriving {
        true => (Trend::CatchingUp, Some(lag_events as f64 / (applied - arriving))),
        false => (Trend::FallingBehind, None),
    }
}
