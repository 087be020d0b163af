//! Waits for a condition, with a deadline and without a fixed sleep.

use std::time::{Duration, Instant};

/// Timeout of a condition, much longer than needed even on a busy machine.
const CONDITION_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum pause between two checks of a condition.
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum pause after a check that takes long itself.
const MAX_COSTLY_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Waits until `condition` holds; panics with the description `what` after a minute.
#[track_caller]
pub fn wait_until(
    what: &str,
    mut condition: impl FnMut() -> bool,
) -> impl std::future::Future<Output = ()> {
    wait_until_some(what, move || condition().then_some(()))
}

/// Waits like [`wait_until`], for a condition that returns a value.
#[track_caller]
pub fn wait_until_some<T>(
    what: &str,
    mut condition: impl FnMut() -> Option<T>,
) -> impl std::future::Future<Output = T> {
    let location = std::panic::Location::caller();
    let what = what.to_owned();
    async move {
        // Real time, so that a paused tokio clock does not run out of it.
        let deadline = Instant::now() + CONDITION_TIMEOUT;
        let mut pause = Duration::from_micros(50);
        loop {
            if let Some(value) = condition() {
                return value;
            }
            assert!(
                Instant::now() < deadline,
                "waited in vain for: {what} (at {location})"
            );
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_POLL_INTERVAL);
        }
    }
}

/// Advances virtual time, timer by timer, in a test whose clock is paused
/// (`start_paused = true`). Costs no real time.
pub async fn advance_time(duration: Duration) {
    let real = Instant::now();
    tokio::time::sleep(duration).await;
    assert!(
        duration < Duration::from_secs(1) || real.elapsed() < duration,
        "the clock of this test is not paused"
    );
}

/// Waits like [`wait_until`], in tests without an async runtime.
#[track_caller]
pub fn wait_until_blocking(what: &str, condition: impl FnMut() -> bool) {
    wait_until_within(CONDITION_TIMEOUT, what, condition);
}

/// Waits like [`wait_until_blocking`], with the timeout `timeout`.
#[track_caller]
pub fn wait_until_within(timeout: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + timeout;
    let mut pause = Duration::from_micros(50);
    loop {
        let began = Instant::now();
        if condition() {
            return;
        }
        assert!(Instant::now() < deadline, "not within {timeout:?}: {what}");
        // A check that runs a program leaves most of the processor to what it waits for.
        let cost = (began.elapsed() * 2).min(MAX_COSTLY_POLL_INTERVAL);
        std::thread::sleep(pause.max(cost));
        pause = (pause * 2).min(MAX_POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn true_condition_ends_the_wait() {
        let mut looks = 0;
        wait_until("three looks", || {
            looks += 1;
            looks == 3
        })
        .await;
        assert_eq!(wait_until_some("a value", || Some(7)).await, 7);
        wait_until_blocking("nothing", || true);
    }
}
