//! Transactions: locks that are held to the end, writes that nobody sees before the commit.
//!
//! A lock is granted whenever it is compatible, in any order: every order in which PostgreSQL's queue
//! could grant them is among these. Time-outs and deadlocks end in a rollback, which any actor may
//! meet at any moment (`actions.rs`).

use crate::bits::{Few, Position, Positions};
use crate::note::Note;
use crate::state::{GENERATIONS, Local, State, Status};

/// How a gate is held.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Hold {
    #[default]
    None,
    Shared,
    Exclusive,
}

/// A gate: that of the registry, or that of a generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gate {
    Registry,
    Generation(usize),
}

/// A write that waits for its commit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Write {
    Apply {
        generation: u8,
        key: u8,
        position: Position,
    },
    /// A skip record.
    Owe {
        generation: u8,
        position: Position,
    },
    /// The skip record's row is deleted; until the commit it is locked.
    Settle {
        generation: u8,
        position: Position,
    },
    /// A dead letter, or an event that waits behind one.
    PutAside {
        generation: u8,
        position: Position,
        failed: bool,
    },
    /// It is none any more.
    TakeBack {
        generation: u8,
        position: Position,
    },
    Checkpoint {
        generation: u8,
        by: u8,
        to: Position,
    },
    /// Every change of a status raises the epoch: whoever had a lease has lost it.
    Status {
        generation: u8,
        to: Status,
    },
    /// The checkpoint of a generation that is fed behind the appends from now on.
    Keep {
        generation: u8,
        at: Position,
    },
    Record {
        generation: u8,
    },
    Show {
        generation: u8,
    },
}

/// What a transaction holds and has written.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Transaction {
    pub(crate) is_open: bool,
    registry: Hold,
    gates: [Hold; GENERATIONS],
    /// Stream locks, exclusive.
    streams: Few,
    /// Key locks of each generation, exclusive.
    keys: [Few; GENERATIONS],
    /// Rows of `checkpoints`, by generation.
    rows: Few,
    /// The lowest of its announcements.
    announced: Option<Position>,
    pub(crate) writes: Vec<Write>,
    /// What it held and had written at the savepoint.
    savepoint: Option<Box<Transaction>>,
}

impl Transaction {
    fn hold(&mut self, gate: Gate) -> &mut Hold {
        match gate {
            Gate::Registry => &mut self.registry,
            Gate::Generation(generation) => &mut self.gates[generation],
        }
    }

    fn held(&self, gate: Gate) -> Hold {
        match gate {
            Gate::Registry => self.registry,
            Gate::Generation(generation) => self.gates[generation],
        }
    }
}

/// Locks. Each returns false where it would have to wait.
impl State {
    fn others(&self, me: usize) -> impl Iterator<Item = &Transaction> {
        let others = self.actors.iter().enumerate().filter(move |(actor, _)| *actor != me);
        others.map(|(_, actor)| &actor.transaction)
    }

    pub(crate) fn transaction(&mut self, me: usize) -> &mut Transaction {
        let transaction = &mut self.actors[me].transaction;
        transaction.is_open = true;
        transaction
    }

    pub(crate) fn can_share(&self, me: usize, gate: Gate) -> bool {
        self.others(me).all(|other| other.held(gate) != Hold::Exclusive)
    }

    pub(crate) fn share(&mut self, me: usize, gate: Gate) -> bool {
        let free = self.can_share(me, gate);
        if free {
            *self.transaction(me).hold(gate) = Hold::Shared;
        }
        free
    }

    pub(crate) fn take(&mut self, me: usize, gate: Gate) -> bool {
        let free = self.others(me).all(|other| other.held(gate) == Hold::None);
        if free {
            *self.transaction(me).hold(gate) = Hold::Exclusive;
        }
        free
    }

    /// Who holds the gate of a generation now, as `pg_locks` shows it.
    pub(crate) fn holders(&self, me: usize, generation: usize) -> Few {
        let holds = |actor: &usize| self.actors[*actor].transaction.gates[generation] != Hold::None;
        (0..self.actors.len()).filter(|actor| *actor != me).filter(holds).collect()
    }

    pub(crate) fn lock_stream(&mut self, me: usize, stream: usize) -> bool {
        let free = self.others(me).all(|other| !other.streams.contains(stream));
        if free {
            self.transaction(me).streams.insert(stream);
        }
        free
    }

    pub(crate) fn lock_key(&mut self, me: usize, generation: usize, key: usize) -> bool {
        let free = self.others(me).all(|other| !other.keys[generation].contains(key));
        if free {
            self.transaction(me).keys[generation].insert(key);
        }
        free
    }

    pub(crate) fn is_row_free(&self, me: usize, generation: usize) -> bool {
        self.others(me).all(|other| !other.rows.contains(generation))
    }

    /// The checkpoint's row, for update.
    pub(crate) fn lock_row(&mut self, me: usize, generation: usize) -> bool {
        let free = self.is_row_free(me, generation);
        if free {
            self.transaction(me).rows.insert(generation);
        }
        free
    }

    pub(crate) fn announce(&mut self, me: usize, last: Position) {
        let transaction = self.transaction(me);
        let lowest = transaction.announced.map_or(last, |earlier| earlier.min(last));
        transaction.announced = Some(lowest);
    }

    pub(crate) fn lowest_announced(&self) -> Option<Position> {
        self.actors.iter().filter_map(|actor| actor.transaction.announced).min()
    }
}

/// What a statement sees.
impl State {
    pub(crate) fn skips_seen(&self, me: usize, of: usize) -> Positions {
        let mut skips = self.generations[of].skips;
        for write in &self.actors[me].transaction.writes {
            match *write {
                Write::Owe { generation, position } if generation as usize == of => {
                    skips.insert(position);
                }
                Write::Settle { generation, position } if generation as usize == of => {
                    skips.remove(position);
                }
                _ => {}
            }
        }
        skips
    }

    pub(crate) fn aside_seen(&self, me: usize, of: usize) -> Positions {
        let writes = self.actors[me].transaction.writes.iter();
        let own = writes.filter_map(|write| match *write {
            Write::PutAside { generation, position, .. } if generation as usize == of => {
                Some(position)
            }
            _ => None,
        });
        self.generations[of].aside().or(own.collect())
    }

    /// Skips whose rows somebody else has deleted and not committed: one waits for that.
    pub(crate) fn skips_locked(&self, me: usize, of: usize) -> Positions {
        let writes = self.others(me).flat_map(|other| &other.writes);
        let settled = writes.filter_map(|write| match *write {
            Write::Settle { generation, position } if generation as usize == of => Some(position),
            _ => None,
        });
        settled.collect()
    }
}

/// Ends of transactions.
impl State {
    pub(crate) fn write(&mut self, me: usize, write: Write) {
        self.transaction(me).writes.push(write);
    }

    pub(crate) fn commit(&mut self, me: usize) {
        let own = self.log.in_flight_of(me);
        if own.iter().any(|position| !self.log.committed().after(position).is_empty()) {
            self.notes.add(Note::CommittedBelowACommittedPosition);
        }
        let seen = self.read();
        for write in std::mem::take(&mut self.actors[me].transaction.writes) {
            self.carry_out(write);
        }
        self.end(me, true);
        self.note_what_readers_lost(seen);
    }

    pub(crate) fn set_savepoint(&mut self, me: usize) {
        let transaction = self.transaction(me);
        transaction.savepoint = Some(Box::new(transaction.clone()));
    }

    pub(crate) fn release_savepoint(&mut self, me: usize) {
        self.actors[me].transaction.savepoint = None;
    }

    pub(crate) fn has_savepoint(&self, me: usize) -> bool {
        self.actors[me].transaction.savepoint.is_some()
    }

    /// What was locked, written and drawn since is undone; the locks are free for others.
    pub(crate) fn roll_back_to_savepoint(&mut self, me: usize, drawn: Position) {
        let transaction = &mut self.actors[me].transaction;
        if let Some(savepoint) = transaction.savepoint.take() {
            *transaction = *savepoint;
        }
        if drawn != 0 {
            self.log.undo(drawn);
        }
        self.notes.add(Note::RolledBackToASavepoint);
    }

    pub(crate) fn roll_back(&mut self, me: usize) {
        if !self.log.in_flight_of(me).is_empty() {
            self.notes.add(Note::DrawnPositionRolledBack);
        }
        self.end(me, false);
    }

    fn end(&mut self, me: usize, commit: bool) {
        self.log.end(me, commit);
        self.actors[me].transaction = Transaction::default();
        for actor in &mut self.actors {
            if let Local::Rebuild(rebuild) = &mut actor.local {
                rebuild.waits_for.remove(me);
            }
        }
    }

    fn carry_out(&mut self, write: Write) {
        match write {
            Write::Apply { generation, key, position } => {
                self.generations[generation as usize].applied[key as usize].push(position);
            }
            Write::Owe { generation, position } => {
                self.generations[generation as usize].skips.insert(position);
            }
            Write::Settle { generation, position } => {
                self.generations[generation as usize].skips.remove(position);
            }
            Write::PutAside { generation, position, failed } => {
                let generation = &mut self.generations[generation as usize];
                let aside = if failed { &mut generation.failed } else { &mut generation.held };
                aside.insert(position);
            }
            Write::TakeBack { generation, position } => {
                let generation = &mut self.generations[generation as usize];
                generation.failed.remove(position);
                generation.held.remove(position);
            }
            Write::Checkpoint { generation, by, to } => {
                let generation = &mut self.generations[generation as usize];
                if generation.holder != Some(by) {
                    self.notes.add(Note::CheckpointMovedByAnOldEpoch);
                }
                if to < generation.checkpoint {
                    self.notes.add(Note::CheckpointMovedBack);
                }
                generation.checkpoint = to;
            }
            Write::Status { generation, to } => {
                let generation = &mut self.generations[generation as usize];
                generation.status = to;
                generation.recording = false;
                generation.holder = None;
            }
            Write::Keep { generation, at } => self.generations[generation as usize].checkpoint = at,
            Write::Record { generation } => self.generations[generation as usize].recording = true,
            Write::Show { generation } => self.shown = Some(generation as usize),
        }
    }

    /// What readers see now.
    fn read(&self) -> Positions {
        self.shown.map_or(Positions::default(), |shown| self.generations[shown].holds())
    }

    fn note_what_readers_lost(&mut self, seen: Positions) {
        let lost = seen.without(self.read());
        if lost.is_empty() {
            return;
        }
        let owed = self.shown.map_or(Positions::default(), |shown| self.generations[shown].owes());
        if lost.without(owed).is_empty() {
            self.notes.add(Note::ReadersWaitForWhatTheySawBefore);
        } else {
            self.notes.add(Note::ReadersLostWhatTheySaw);
        }
    }
}
