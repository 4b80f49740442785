//! Writers that append as fast as they are answered, for a while.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use everfold::{ExpectedVersion, NewEvent, Store, Version};

use crate::workload::{APPENDED_TYPE, STREAM_EVENTS, new_data, new_stream};

/// Something that can append to a new stream again and again.
pub(crate) trait Append: Send + Sync + 'static {
    /// Events in each append.
    fn events(&self) -> usize;
    /// One append, by one of the writers.
    fn append(&self, writer: usize) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// What the writers did.
pub(crate) struct Run {
    pub(crate) events: u64,
    pub(crate) elapsed: Duration,
    /// How long each append took.
    pub(crate) latencies: Vec<Duration>,
}

impl Run {
    pub(crate) fn events_per_second(&self) -> f64 {
        self.events as f64 / self.elapsed.as_secs_f64()
    }
}

/// Lets writers append for the given time; each finishes the append it is in.
pub(crate) async fn drive<A: Append>(
    appender: &Arc<A>,
    writers: usize,
    time: Duration,
) -> anyhow::Result<Run> {
    let start = Instant::now();
    drive_while(appender, writers, move || start.elapsed() < time).await
}

/// Lets writers append for as long as is said; each finishes the append it is in.
pub(crate) async fn drive_while<A: Append>(
    appender: &Arc<A>,
    writers: usize,
    goes_on: impl Fn() -> bool + Clone + Send + 'static,
) -> anyhow::Result<Run> {
    let start = Instant::now();
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let (appender, goes_on) = (Arc::clone(appender), goes_on.clone());
            tokio::spawn(async move {
                let mut latencies = Vec::new();
                while goes_on() {
                    let before = Instant::now();
                    appender.append(writer).await?;
                    latencies.push(before.elapsed());
                }
                anyhow::Ok(latencies)
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await??);
    }
    let elapsed = start.elapsed();
    Ok(Run { events: (latencies.len() * appender.events()) as u64, elapsed, latencies })
}

/// Appends through the library.
pub(crate) struct StoreAppend {
    pub(crate) store: Store,
    pub(crate) events: usize,
}

impl Append for StoreAppend {
    fn events(&self) -> usize {
        self.events
    }

    async fn append(&self, _: usize) -> anyhow::Result<()> {
        let events: Vec<NewEvent> = (0..self.events)
            .map(|_| NewEvent::from_json(APPENDED_TYPE, new_data()))
            .collect::<Result<_, _>>()?;
        let appended = self.store.append(new_stream(), ExpectedVersion::NoStream, events).await?;
        anyhow::ensure!(appended.version.0 == self.events as u64, "the stream was not new");
        Ok(())
    }
}

/// Where each writer is: a stream of its own and its version.
pub(crate) struct Places(Vec<Mutex<(String, u64)>>);

impl Places {
    pub(crate) fn new(writers: usize) -> Places {
        Places((0..writers).map(|_| Mutex::new((new_stream(), 0))).collect())
    }

    /// The stream and version to append to next.
    pub(crate) fn take(&self, writer: usize) -> (String, u64) {
        let mut place = self.0[writer].lock().expect("nothing panics with this locked");
        if place.1 == STREAM_EVENTS {
            *place = (new_stream(), 0);
        }
        let taken = place.clone();
        place.1 += 1;
        taken
    }
}

/// Appends through the library to streams that get a few events each.
pub(crate) struct StoreWriters {
    pub(crate) store: Store,
    pub(crate) places: Places,
}

impl Append for StoreWriters {
    fn events(&self) -> usize {
        1
    }

    async fn append(&self, writer: usize) -> anyhow::Result<()> {
        let (stream, version) = self.places.take(writer);
        let expected = ExpectedVersion::Exact(Version(version));
        let event = NewEvent::from_json(APPENDED_TYPE, new_data())?;
        self.store.append(stream, expected, [event]).await?;
        Ok(())
    }
}
