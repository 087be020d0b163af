//! Sleeping until an optional time.

use tokio::time::Instant;

/// Waits until the deadline, or forever if there is none: a branch of a `select!` for a state machine's next deadline.
pub async fn sleep_until(deadline: Option<impl Into<Instant>>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
