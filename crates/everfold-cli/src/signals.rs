//! SIGTERM and SIGINT.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Both, from the moment that this is made.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn listen() -> anyhow::Result<Signals> {
        let listen = |kind| signal(kind).context("signals cannot be listened for");
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// The next one that comes, or that came since the last call.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
