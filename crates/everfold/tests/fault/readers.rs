//! Readers that run beside a load: ours, by three doors; the classic wrong one; and an oracle that
//! is right for another reason, as a cross-check.

use std::collections::BTreeSet;
use std::time::Duration;

use everfold::{ReadAll, Store};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::session::{LIMIT, Session, describe, is_lost};

/// Pause between two polls of a reader.
const POLL: Duration = Duration::from_millis(3);

/// Position at which readers may stop, once it is known.
pub(crate) type LastPosition = watch::Receiver<Option<i64>>;

/// A reader by hand: the mark in one statement, the events up to it in a later one.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    pub(crate) checkpoint: i64,
    pub(crate) seen: Vec<i64>,
}

impl Reader {
    /// Reads up to the mark; returns it.
    pub(crate) async fn poll(&mut self, session: &Session) -> i64 {
        let mark = session.mark().await;
        self.read_to(session, mark).await;
        mark
    }

    /// Reads up to a mark, whoever says that it is one.
    pub(crate) async fn read_to(&mut self, session: &Session, mark: i64) {
        let sql = format!(
            "SELECT position FROM everfold.events WHERE position > {} AND position <= {mark} \
             ORDER BY position",
            self.checkpoint
        );
        self.seen.extend(session.numbers(&sql).await);
        self.checkpoint = self.checkpoint.max(mark);
    }
}

/// Ours in SQL: mark, then events, with the mark as the checkpoint.
pub(crate) async fn by_mark(url: String, last: LastPosition) -> Vec<i64> {
    up_to(url, last, "SELECT everfold.high_water_mark()").await
}

/// A mark that a standby works out by itself; the function is the story's own.
pub(crate) async fn by_local_mark(url: String, last: LastPosition) -> Vec<i64> {
    up_to(url, last, "SELECT local.high_water_mark()").await
}

async fn up_to(url: String, last: LastPosition, mark: &str) -> Vec<i64> {
    let mut session = Steady::open(url).await;
    let (mut checkpoint, mut seen) = (0, Vec::new());
    while !has_reached(&last, checkpoint) {
        let mark = session.numbers(mark).await[0];
        let sql = format!(
            "SELECT position FROM everfold.events \
             WHERE position > {checkpoint} AND position <= {mark} ORDER BY position"
        );
        seen.extend(session.numbers(&sql).await);
        checkpoint = checkpoint.max(mark);
        tokio::time::sleep(POLL).await;
    }
    seen
}

/// Ours in SQL: `everfold.read_all` in one call, with the last event as the checkpoint.
pub(crate) async fn by_read_all(url: String, last: LastPosition) -> Vec<i64> {
    let sql = |checkpoint| format!("SELECT position FROM everfold.read_all({checkpoint}, 500)");
    after_last_event(url, last, sql).await
}

/// The classic: everything after the last position seen.
pub(crate) async fn naive(url: String, last: LastPosition) -> Vec<i64> {
    let sql = |checkpoint| {
        format!(
            "SELECT position FROM everfold.events WHERE position > {checkpoint} ORDER BY position"
        )
    };
    after_last_event(url, last, sql).await
}

async fn after_last_event(
    url: String,
    last: LastPosition,
    sql: impl Fn(i64) -> String,
) -> Vec<i64> {
    let mut session = Steady::open(url).await;
    let (mut checkpoint, mut seen) = (0, Vec::new());
    while !has_reached(&last, checkpoint) {
        seen.extend(session.numbers(&sql(checkpoint)).await);
        checkpoint = seen.last().copied().unwrap_or(0);
        tokio::time::sleep(POLL).await;
    }
    seen
}

/// Ours in Rust: a follower.
pub(crate) async fn by_follow(store: Store, last: LastPosition) -> Vec<i64> {
    follow(store.follow(), last).await
}

/// Ours in Rust: a follower of some types only. The last event must be of one of them.
pub(crate) async fn by_follow_of_types(
    store: Store,
    types: &'static [&'static str],
    last: LastPosition,
) -> Vec<i64> {
    follow(store.follow().types(types.iter().copied()), last).await
}

async fn follow(read: ReadAll, mut last: LastPosition) -> Vec<i64> {
    let mut events = read.events();
    let mut seen: Vec<i64> = Vec::new();
    while !has_reached(&last, seen.last().copied().unwrap_or(0)) {
        tokio::select! {
            event = events.next() => {
                let event = event.expect("following goes on").expect("following does not end");
                seen.push(i64::try_from(event.position.0).expect("positions are small here"));
            }
            changed = last.changed() => changed.expect("the load says where it ended"),
        }
    }
    seen
}

/// The oracle: reads the sequence, then waits until whoever may have drawn a position up to there
/// (all that hold the table for writing) has ended. Needs no announcements, but waits for everyone.
pub(crate) async fn by_wait_set(url: String, last: LastPosition) -> Vec<i64> {
    let session = Session::open(&url).await;
    let mut reader = Reader::default();
    while !has_reached(&last, reader.checkpoint) {
        let handed_out =
            "SELECT coalesce(pg_sequence_last_value('everfold.events_position_seq'), 0)";
        let handed_out = session.number(handed_out).await;
        let mut writers = writers(&session).await;
        while !writers.is_empty() {
            tokio::time::sleep(POLL).await;
            let mut still = self::writers(&session).await;
            // A writer that is prepared changes its name, so all prepared ones are waited for.
            still.retain(|writer| writers.contains(writer) || writer.starts_with("-1/"));
            writers = still;
        }
        reader.read_to(&session, handed_out).await;
        tokio::time::sleep(POLL).await;
    }
    reader.seen
}

async fn writers(session: &Session) -> BTreeSet<String> {
    let sql = "SELECT virtualtransaction FROM pg_locks
        WHERE locktype = 'relation' AND relation = 'everfold.events'::regclass
          AND mode = 'RowExclusiveLock'";
    let rows = session.rows(sql).await.expect("the locks can be read");
    rows.into_iter().filter_map(|mut row| row[0].take()).collect()
}

/// A session that connects again when it is lost: with the server, or by a kill that was meant for
/// an appender and, behind a pooler, hit the reader that got its server connection.
struct Steady {
    url: String,
    session: Session,
}

impl Steady {
    async fn open(url: String) -> Steady {
        Steady { session: Session::open(&url).await, url }
    }

    async fn numbers(&mut self, sql: &str) -> Vec<i64> {
        loop {
            match self.session.try_numbers(sql).await {
                Ok(numbers) => return numbers,
                Err(error) if is_lost(&error) => self.session = Session::reopen(&self.url).await,
                Err(error) => panic!("{sql}: {}", describe(&error)),
            }
        }
    }
}

fn has_reached(last: &LastPosition, checkpoint: i64) -> bool {
    last.borrow().is_some_and(|last| checkpoint >= last)
}

/// Waits for a reader, no longer than is reasonable.
pub(crate) async fn finish(what: &str, reader: JoinHandle<Vec<i64>>) -> Vec<i64> {
    let outcome = tokio::time::timeout(LIMIT, reader).await;
    outcome
        .unwrap_or_else(|_| panic!("the reader did not reach the end: {what}"))
        .unwrap_or_else(|error| panic!("the reader failed: {what}: {error}"))
}
