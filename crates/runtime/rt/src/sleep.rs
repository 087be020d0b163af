//! Waiting for what may not be due.

use tokio::time::Instant;

/// Waits for a date, or for ever if there is none: a branch of a `select!` over a state machine's next date.
pub async fn sleep_until(deadline: Option<impl Into<Instant>>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
