//! Connections that wait while no pod of their waypoint is ready.
//!
//! Meanwhile the proxy does not read the application's data; its first bytes stay in the kernel's buffers. At most
//! [`MAX_WAITING_CONNECTIONS`] connections of one instance wait. Further connections, and those whose wait times out,
//! fail.

use std::{sync::Arc, time::Duration};

use rand::Rng;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep},
};

/// Maximum time for which a connection waits for a pod of its waypoint.
const WAIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of connections of one proxy instance that wait for a waypoint.
const MAX_WAITING_CONNECTIONS: usize = 1024;
/// Delay before the first retry of the waypoint, doubled for each further one up to [`MAX_RETRY_DELAY`].
const MIN_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Maximum delay between retries of the waypoint, which bounds how late a connection notices a ready pod.
const MAX_RETRY_DELAY: Duration = Duration::from_millis(400);

/// Counter of one instance's connections that wait for a waypoint. Clones share it.
#[derive(Clone, Debug)]
pub struct WaypointWaits(Arc<Semaphore>);

impl Default for WaypointWaits {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_WAITING_CONNECTIONS)))
    }
}

impl WaypointWaits {
    /// Creates the wait of one connection, which begins at the first call of [`WaypointWait::wait_for_retry`].
    pub fn begin_wait(&self) -> WaypointWait {
        WaypointWait {
            waits: self.clone(),
            deadline_and_permit: None,
            next_delay: MIN_RETRY_DELAY,
        }
    }
}

/// Wait of one connection for a pod of its waypoint.
#[derive(Debug)]
pub struct WaypointWait {
    waits: WaypointWaits,
    /// Deadline and permit of a wait that has started.
    deadline_and_permit: Option<(Instant, OwnedSemaphorePermit)>,
    next_delay: Duration,
}

impl WaypointWait {
    /// Waits until the next retry of the waypoint. Returns `false` at once if the connection may not wait any longer.
    pub async fn wait_for_retry(&mut self) -> bool {
        let until = match &self.deadline_and_permit {
            Some((until, _permit)) => *until,
            None => {
                let Ok(permit) = self.waits.0.clone().try_acquire_owned() else {
                    return false;
                };
                let until = Instant::now() + WAIT_TIMEOUT;
                self.deadline_and_permit = Some((until, permit));
                until
            }
        };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let spread = rand::rng().random_range(0.8..1.2);
        sleep(self.next_delay.mul_f64(spread).min(left)).await;
        self.next_delay = (self.next_delay * 2).min(MAX_RETRY_DELAY);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connection_waits_five_seconds_with_a_few_retries() {
        let waits = WaypointWaits::default();
        let mut wait = waits.begin_wait();
        let (began, mut attempts) = (Instant::now(), 0);
        while wait.wait_for_retry().await {
            attempts += 1;
        }
        assert_eq!(began.elapsed().as_secs(), WAIT_TIMEOUT.as_secs());
        assert!((12..25).contains(&attempts), "{attempts}");
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_a_number_of_connections_wait() {
        let waits = WaypointWaits::default();
        let mut all: Vec<_> = (0..MAX_WAITING_CONNECTIONS)
            .map(|_| waits.begin_wait())
            .collect();
        for wait in &mut all {
            assert!(wait.wait_for_retry().await);
        }
        let mut further = waits.begin_wait();
        assert!(!further.wait_for_retry().await);
        all.pop();
        assert!(further.wait_for_retry().await);
    }
}
