//! Helpers that several test files of the plugin share.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Waits until the process sleeps (`nanosleep`) between two of its retries.
pub(crate) fn wait_until_asleep(pid: u32) {
    let deadline = Instant::now() + Duration::from_secs(10);
    let file = Path::new("/proc").join(pid.to_string()).join("wchan");
    while !fs::read_to_string(&file).is_ok_and(|at| at.contains("nanosleep")) {
        assert!(Instant::now() < deadline, "the plugin does not wait");
        thread::yield_now();
    }
}
