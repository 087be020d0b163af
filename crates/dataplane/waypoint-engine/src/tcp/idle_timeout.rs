//! Idle timeout of relayed TCP connections.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use tokio::time::Instant;

/// Idle timeout of one relayed connection; `None` never expires.
#[derive(Debug)]
pub(super) struct IdleTimeout(Option<IdleTimer>);

#[derive(Debug)]
struct IdleTimer {
    timeout: Duration,
    began: Instant,
    /// Time of the last relayed byte, in milliseconds since the connection began.
    last_byte_milliseconds: AtomicU64,
}

impl IdleTimeout {
    /// Starts the idle timeout of a connection; `None` never expires.
    pub(super) fn new(timeout: Option<Duration>) -> Self {
        Self(timeout.map(|most| IdleTimer {
            timeout: most,
            began: Instant::now(),
            last_byte_milliseconds: AtomicU64::new(0),
        }))
    }

    /// Restarts the idle timeout, since a byte was relayed.
    pub(super) fn restart(&self) {
        if let Some(limited) = &self.0 {
            let since = limited.began.elapsed().as_millis();
            let since = u64::try_from(since).unwrap_or(u64::MAX);
            limited.last_byte_milliseconds.store(since, Relaxed);
        }
    }

    /// Completes when no byte has been relayed for the idle timeout.
    pub(super) async fn wait_until_expired(&self) {
        let Some(limited) = &self.0 else {
            return std::future::pending().await;
        };
        loop {
            let last = Duration::from_millis(limited.last_byte_milliseconds.load(Relaxed));
            let until = limited.began + last + limited.timeout;
            if Instant::now() >= until {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn timeout_restarts_with_every_byte() {
        let idle_timeout = IdleTimeout::new(Some(Duration::from_secs(10)));
        let began = Instant::now();
        let noise = async {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_secs(9)).await;
                idle_timeout.restart();
            }
        };
        tokio::join!(noise, idle_timeout.wait_until_expired());
        assert_eq!(began.elapsed().as_secs(), 37);
        let unlimited = IdleTimeout::new(None);
        let forever =
            tokio::time::timeout(Duration::from_secs(9999), unlimited.wait_until_expired());
        forever.await.unwrap_err();
    }
}
