//! Who runs which shard: leases by the clock of SQLite, fenced by epochs, in even shares.

use std::collections::{HashMap, HashSet};

use rusqlite::Connection;
use uuid::Uuid;

use super::registry::json_or_null;
use crate::Position;
use crate::projection::generation::{Lease, ShardId};
use crate::store::Tick;

const SAY_ALIVE: &str = include_str!("../../../../sql/sqlite/statements/say_alive.sql");
const LIST_SHARDS: &str = include_str!("../../../../sql/sqlite/statements/list_shards.sql");
const TAKE: &str = "UPDATE everfold_checkpoints SET owner = ?3, epoch = epoch + 1 \
    WHERE generation = ?1 AND shard = ?2";
const RELEASE: &str = "UPDATE everfold_checkpoints SET owner = NULL, expires_at = NULL \
    WHERE generation = ?1 AND shard = ?2";
const PROLONG: &str = "UPDATE everfold_checkpoints \
    SET expires_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?2 WHERE owner = ?1";
const LIST_OWN: &str = include_str!("../../../../sql/sqlite/statements/list_own_shards.sql");
const DELETE_EXPIRED: &str = "DELETE FROM everfold_workers \
    WHERE expires_at <= CAST(unixepoch('subsec') * 1000 AS INTEGER)";
const LIST_WORKERS: &str = "SELECT id, carries FROM everfold_workers ORDER BY id";
const RELEASE_ALL: &str =
    "UPDATE everfold_checkpoints SET owner = NULL, expires_at = NULL WHERE owner = ?1";
const DELETE_WORKER: &str = "DELETE FROM everfold_workers WHERE id = ?1";

/// Says that the worker lives, prolongs its leases, takes and gives up what is due. Returns what it
/// has then. The transaction holds the write lock.
pub(in crate::store::sqlite) fn tick(
    connection: &Connection,
    tick: &Tick,
) -> Result<Vec<Lease>, rusqlite::Error> {
    let worker = tick.worker.to_string();
    let ttl = i64::try_from(tick.lease_ttl.as_millis()).unwrap_or(i64::MAX);
    let carries = serde_json::to_string(&tick.carries).expect("a list of numbers is JSON");
    connection.prepare_cached(DELETE_EXPIRED)?.execute([])?;
    connection.prepare_cached(SAY_ALIVE)?.execute((&worker, &tick.name, ttl, carries))?;

    let changes = due(tick.worker, &workers(connection)?, &shards(connection)?);
    for shard in changes.release {
        connection.prepare_cached(RELEASE)?.execute((shard.generation, shard.shard))?;
    }
    for shard in changes.take {
        connection.prepare_cached(TAKE)?.execute((shard.generation, shard.shard, &worker))?;
    }
    connection.prepare_cached(PROLONG)?.execute((&worker, ttl))?;
    let lease = |row: &rusqlite::Row<'_>| {
        Ok(Lease {
            shard: ShardId { generation: row.get(0)?, shard: row.get(1)? },
            epoch: row.get(2)?,
            position: Position::from_stored(row.get(3)?),
        })
    };
    connection.prepare_cached(LIST_OWN)?.query_map([&worker], lease)?.collect()
}

/// Gives up all leases of a worker, and its row.
pub(super) fn leave(connection: &Connection, worker: Uuid) -> Result<(), rusqlite::Error> {
    let worker = worker.to_string();
    connection.prepare_cached(RELEASE_ALL)?.execute([&worker])?;
    connection.prepare_cached(DELETE_WORKER)?.execute([&worker])?;
    Ok(())
}

struct Worker {
    id: Uuid,
    carries: HashSet<i32>,
}

struct Shard {
    id: ShardId,
    /// Whoever holds a lease that has not expired.
    owner: Option<Uuid>,
    /// Whether its generation is one that is fed.
    runnable: bool,
}

fn workers(connection: &Connection) -> Result<Vec<Worker>, rusqlite::Error> {
    let worker = |row: &rusqlite::Row<'_>| {
        Ok(Worker {
            id: owner(row, 0)?.unwrap_or_default(),
            carries: json_or_null(row, 1)?.unwrap_or_default(),
        })
    };
    connection.prepare_cached(LIST_WORKERS)?.query_map([], worker)?.collect()
}

fn shards(connection: &Connection) -> Result<Vec<Shard>, rusqlite::Error> {
    let shard = |row: &rusqlite::Row<'_>| {
        Ok(Shard {
            id: ShardId { generation: row.get(0)?, shard: row.get(1)? },
            owner: owner(row, 2)?,
            runnable: row.get(3)?,
        })
    };
    connection.prepare_cached(LIST_SHARDS)?.query_map([], shard)?.collect()
}

/// An owner that is no UUID was put there by hand, and counts as nobody.
pub(in crate::store::sqlite) fn owner(
    row: &rusqlite::Row<'_>,
    column: usize,
) -> Result<Option<Uuid>, rusqlite::Error> {
    Ok(row.get_ref(column)?.as_str_or_null()?.and_then(|owner| owner.parse().ok()))
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    release: Vec<ShardId>,
    take: Vec<ShardId>,
}

/// What a worker should take and give up now. Its share is the sum, over the shards that it can
/// run, of one part in as many workers as can run that shard. It takes more only where nobody else
/// is short, and gives up only what somebody else is short of, so that no shard is left lying.
fn due(me: Uuid, workers: &[Worker], shards: &[Shard]) -> Changes {
    let runnable = |shard: &&Shard| shard.runnable;
    let carriers =
        |generation: i32| workers.iter().filter(move |worker| worker.carries.contains(&generation));
    let mut share: HashMap<Uuid, f64> = HashMap::new();
    let mut has: HashMap<Uuid, usize> = HashMap::new();
    for shard in shards.iter().filter(runnable) {
        let count = carriers(shard.id.generation).count() as f64;
        for worker in carriers(shard.id.generation) {
            *share.entry(worker.id).or_default() += 1.0 / count;
        }
        if let Some(owner) = shard.owner {
            *has.entry(owner).or_default() += 1;
        }
    }
    // Sums of parts are a little off; a share of 3.0000001 is 3.
    let whole = |worker: Uuid| (share.get(&worker).unwrap_or(&0.0) - 1e-6).ceil() as usize;
    let others_are_short = |has: &HashMap<Uuid, usize>, generation: i32| {
        carriers(generation).any(|other| {
            other.id != me && has.get(&other.id).copied().unwrap_or(0) < whole(other.id)
        })
    };
    let mine = |generation: i32| carriers(generation).any(|worker| worker.id == me);

    let mut changes = Changes::default();
    for shard in shards.iter().rev().filter(|shard| shard.owner == Some(me)) {
        let generation = shard.id.generation;
        let held = has.get(&me).copied().unwrap_or(0);
        if !shard.runnable || !mine(generation) {
            changes.release.push(shard.id);
        } else if held > whole(me) && others_are_short(&has, generation) {
            changes.release.push(shard.id);
            has.insert(me, held - 1);
        }
    }
    for shard in shards.iter().filter(runnable).filter(|shard| shard.owner.is_none()) {
        let generation = shard.id.generation;
        let held = has.get(&me).copied().unwrap_or(0);
        if mine(generation) && (held < whole(me) || !others_are_short(&has, generation)) {
            changes.take.push(shard.id);
            has.insert(me, held + 1);
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(number: u128, carries: &[i32]) -> Worker {
        Worker { id: Uuid::from_u128(number), carries: carries.iter().copied().collect() }
    }

    fn shard(generation: i32, shard: u32, owner: u128) -> Shard {
        let owner = (owner > 0).then(|| Uuid::from_u128(owner));
        Shard { id: ShardId { generation, shard }, owner, runnable: true }
    }

    /// Lets every worker take its turn until nothing changes, and says how many shards each has.
    fn settle(workers: &[Worker], shards: &mut [Shard]) -> Vec<usize> {
        for _ in 0..20 {
            let mut quiet = true;
            for worker in workers {
                let changes = due(worker.id, workers, shards);
                quiet &= changes == Changes::default();
                for shard in shards.iter_mut() {
                    if changes.release.contains(&shard.id) {
                        shard.owner = None;
                    }
                    if changes.take.contains(&shard.id) {
                        assert_eq!(shard.owner, None, "only free ones are taken");
                        shard.owner = Some(worker.id);
                    }
                }
            }
            if quiet {
                let count = |worker: &Worker| {
                    shards.iter().filter(|shard| shard.owner == Some(worker.id)).count()
                };
                return workers.iter().map(count).collect();
            }
        }
        panic!("the workers never settle");
    }

    #[test]
    fn shards_are_shared_evenly_and_again_when_workers_come() {
        let mut shards: Vec<Shard> = (0..10).map(|number| shard(1, number, 0)).collect();
        assert_eq!(settle(&[worker(1, &[1])], &mut shards), [10]);
        let two = [worker(1, &[1]), worker(2, &[1])];
        assert_eq!(settle(&two, &mut shards), [5, 5]);
        let three = [worker(1, &[1]), worker(2, &[1]), worker(3, &[1])];
        let mut counts = settle(&three, &mut shards);
        counts.sort_unstable();
        assert!(counts == [2, 4, 4] || counts == [3, 3, 4], "{counts:?}");
    }

    #[test]
    fn many_projections_of_one_shard_are_shared_too() {
        let mut shards: Vec<Shard> = (1..=20).map(|generation| shard(generation, 0, 0)).collect();
        let all: Vec<i32> = (1..=20).collect();
        let workers = [worker(1, &all), worker(2, &all), worker(3, &all), worker(4, &all)];
        assert_eq!(settle(&workers, &mut shards), [5, 5, 5, 5]);
    }

    #[test]
    fn no_shard_is_left_lying_when_workers_can_run_different_things() {
        // Shares alone would leave generation 3 to nobody: 1 is full with two of its shards.
        let workers =
            [worker(1, &[1, 2, 3]), worker(2, &[1, 2]), worker(3, &[3, 4]), worker(4, &[4])];
        let mut shards = [shard(1, 0, 1), shard(2, 0, 1), shard(3, 0, 0), shard(4, 0, 3)];
        let counts = settle(&workers, &mut shards);
        assert_eq!(counts.iter().sum::<usize>(), 4);
    }

    #[test]
    fn what_is_not_fed_or_not_carried_is_given_up() {
        let mut paused = shard(1, 0, 1);
        paused.runnable = false;
        let changes = due(Uuid::from_u128(1), &[worker(1, &[1])], &[paused, shard(2, 0, 1)]);
        assert_eq!(changes.release.len(), 2);
        assert!(changes.take.is_empty());
    }
}
