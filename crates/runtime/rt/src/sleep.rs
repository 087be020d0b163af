//! Sleeping until an optional time.

use tokio::time::Instant;

/// Waits until a time, or forever without one: for a branch of a `select!` over a state machine's next deadline.
pub async fn sleep_until(deadline: Option<impl Into<Instant>>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
