//! Shutdown of a proxy instance: it stops accepting connections, the open ones drain, and remaining ones are
//! terminated.

use std::time::Duration;

use ambit_rt::{Drain, DrainMode, DrainWatcher, drain};
use tokio::{sync::watch, time::Instant};

use crate::connection_table::{ConnectionTable, TerminationReason};

/// Duration of a drain without a limit: a century, since the drain requires a deadline.
const UNLIMITED_DRAIN: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Lifecycle of one proxy instance: its open connections, and its shutdown.
#[derive(Debug)]
pub struct Lifecycle {
    connections: ConnectionTable,
    drain: Drain,
    /// Sender whose drop ends the background tasks of the instance, which do not keep it alive.
    alive: watch::Sender<()>,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self {
            connections: ConnectionTable::default(),
            drain: drain::channel().0,
            alive: watch::Sender::new(()),
        }
    }
}

impl Lifecycle {
    /// Returns the open connections.
    pub fn connections(&self) -> &ConnectionTable {
        &self.connections
    }

    /// Returns a watcher of the instance's drain.
    pub fn drain_watcher(&self) -> DrainWatcher {
        self.drain.watcher()
    }

    /// Completes when the last owner of the instance has dropped it.
    pub fn wait_until_dropped(&self) -> impl Future<Output = ()> + use<> {
        let mut alive = self.alive.subscribe();
        async move { while alive.changed().await.is_ok() {} }
    }

    /// Stops accepting connections and drains the open ones. Connections that are still open after `limit` are
    /// terminated.
    pub async fn drain_connections(&self, limit: Option<Duration>) {
        let deadline = Instant::now() + limit.unwrap_or(UNLIMITED_DRAIN);
        self.drain.start(DrainMode::Graceful { deadline });
        let mut ended = self.drain.watcher();
        let finish = self.drain.finish(DrainMode::Graceful { deadline });
        tokio::select! {
            _left = finish => {}
            // A stricter announcement may follow.
            () = ended.wait_until_deadline() => {}
        }
        self.connections.terminate_all(TerminationReason::Drain);
    }

    /// Terminates all connections immediately.
    pub fn terminate_connections(&self) {
        self.drain.start(DrainMode::Immediate);
        self.connections.terminate_all(TerminationReason::Drain);
    }
}
