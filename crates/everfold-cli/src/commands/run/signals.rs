//! SIGTERM and SIGINT.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Both, from the moment that this is made.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn listen() -> anyhow::Result<Signals> {
        let listen = |kind| signal(kind).context("signals cannot be listened for");
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// The next one that comes, or that came since the last call.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
