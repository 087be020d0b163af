//! Schedule of scans of `/proc`: one runs at a time, and failures delay the next.

use std::time::{Duration, Instant};

/// Initial and maximum delay between scans while pods' namespaces are missing.
pub(super) const SCAN_DELAY: (Duration, Duration) =
    (Duration::from_millis(250), Duration::from_secs(30));

/// Schedule of scans, each of which searches all pods without a namespace.
#[derive(Debug)]
pub(super) struct ScanSchedule {
    pub(super) running_since: Option<Instant>,
    /// Time at which the next scan is due; `None` if none is scheduled.
    pub(super) due_at: Option<Instant>,
    pub(super) retry_delay: Duration,
    pub(super) is_initial_scan_done: bool,
}

impl Default for ScanSchedule {
    fn default() -> Self {
        Self {
            running_since: None,
            due_at: None,
            retry_delay: SCAN_DELAY.0,
            is_initial_scan_done: false,
        }
    }
}

impl ScanSchedule {
    pub(super) fn is_initial_scan_done(&self) -> bool {
        self.is_initial_scan_done
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.due_at.filter(|_| self.running_since.is_none())
    }

    /// Schedules a scan at once.
    pub(super) fn request_scan(&mut self, now: Instant) {
        self.due_at = Some(now);
    }

    /// Schedules a scan at once for a pod without a namespace, unless a scan is scheduled or running.
    pub(super) fn request_scan_for_missing(&mut self, now: Instant) {
        if self.due_at.is_none() && self.running_since.is_none() {
            self.due_at = Some(now);
        }
    }

    /// Schedules the next scan after a failure, with increasing delay.
    pub(super) fn on_scan_failed(&mut self, now: Instant) {
        self.running_since = None;
        self.scan_after_pause(now);
    }

    pub(super) fn scan_after_pause(&mut self, now: Instant) {
        let due = now + self.retry_delay;
        self.retry_delay = (self.retry_delay * 2).min(SCAN_DELAY.1);
        self.due_at = Some(self.due_at.map_or(due, |earlier| earlier.min(due)));
    }

    /// Schedules a scan at once, and resets the delay of further scans, since something has changed.
    pub(super) fn scan_soon(&mut self, now: Instant) {
        self.retry_delay = SCAN_DELAY.0;
        self.request_scan(now);
    }
}
