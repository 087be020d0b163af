//! Timeouts for tests of this crate and of crates that use it: an event that never comes must fail a test, not block
//! all others.

use std::{
    panic::Location,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use tokio::sync::oneshot;

/// Timeout of tests, much longer than usual even on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the body of a test, which fails if the body takes longer than a minute of real time, even if tokio's clock is
/// paused.
///
/// # Panics
/// When the time is up.
#[track_caller]
pub fn within<T>(body: impl Future<Output = T>) -> impl Future<Output = T> {
    within_limit(TEST_TIMEOUT, body)
}

#[track_caller]
fn within_limit<T>(limit: Duration, body: impl Future<Output = T>) -> impl Future<Output = T> {
    let location = Location::caller();
    async move {
        let (expired, expiry) = oneshot::channel();
        let (_running, ended) = mpsc::channel::<()>();
        thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                // The body may have ended just now.
                expired.send(()).ok();
            }
        });
        tokio::select! {
            value = body => value,
            Ok(()) = expiry => panic!("not done within {limit:?} (at {location})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_fails() {
        let stuck = crate::spawn("stuck", async {
            within_limit(Duration::from_millis(50), std::future::pending::<()>()).await;
        });
        assert!(stuck.await.unwrap_err().is_panic());
        assert_eq!(within(async { 7 }).await, 7);
    }
}
