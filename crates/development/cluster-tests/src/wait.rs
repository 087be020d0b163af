//! Waiting for conditions of the cluster.

use std::time::{Duration, Instant};

/// Timeout of every operation, long enough for a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(180);

/// Waits until `condition` holds; panics with `what` at the timeout.
#[track_caller]
pub fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    ambit_testkit::wait_until_within(TIMEOUT, what, condition);
}

/// Checks that `condition` holds during the whole of `time`.
#[track_caller]
pub fn assert_throughout(what: &str, time: Duration, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        assert!(condition(), "not all the time: {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}
