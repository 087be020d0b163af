//! Progress of a load that runs in parallel to a test.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ambit_system_tests::wait_until;

/// Number of responses of one load, and the signal that ends it.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    stop: AtomicBool,
    responses: AtomicU32,
}

impl Progress {
    /// Returns whether the load must end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Counts one more response of the load.
    pub(crate) fn count_response(&self) {
        self.responses.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until the load has received `more` additional responses.
    pub(crate) fn wait_for_additional(&self, more: u32) {
        let from = self.responses.load(Ordering::Relaxed);
        wait_until("requests go on", || {
            self.responses.load(Ordering::Relaxed) >= from + more
        });
    }

    /// Returns a guard that ends the load on drop, also during a panic.
    pub(crate) fn stop_at_end(&self) -> StopGuard<'_> {
        StopGuard(&self.stop)
    }
}

/// Guard that ends a load when dropped; see [`Progress::stop_at_end`].
pub(crate) struct StopGuard<'a>(&'a AtomicBool);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
