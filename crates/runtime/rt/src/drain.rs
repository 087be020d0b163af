//! Graceful shutdown of work: the owner announces the mode, and each piece of work follows and is counted until its
//! end.
//!
//! A [`Drain`] belongs to the owner (a process, or one pod's proxy); [`DrainWatcher`]s go to the work. Work that
//! shutdown waits for holds an [`OpenWork`].

use std::time::Duration;

use tokio::{sync::watch, time::Instant};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

/// Treatment of open work at shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainMode {
    /// Accepts no new work, lets open work finish until `deadline`, and then terminates it.
    Graceful {
        /// Time at which remaining work is terminated.
        deadline: Instant,
    },
    /// Terminates all work immediately.
    Immediate,
}

impl DrainMode {
    /// Returns the graceful mode with a deadline `after` from now.
    pub fn graceful(after: Duration) -> Self {
        Self::Graceful {
            deadline: Instant::now() + after,
        }
    }

    /// Returns the time at which open work is terminated.
    pub fn deadline(self) -> Instant {
        match self {
            Self::Graceful { deadline } => deadline,
            Self::Immediate => Instant::now(),
        }
    }
}

/// Creates a drain: the owner's side, and a watcher for the work.
pub fn channel() -> (Drain, DrainWatcher) {
    let (sender, receiver) = watch::channel(None);
    let open = TaskTracker::new();
    (
        Drain {
            sender,
            open_work_tracker: open.clone(),
        },
        DrainWatcher {
            receiver,
            open_work_tracker: open,
        },
    )
}

/// Owner's side of a drain. Dropping it without an announcement means that the drain never starts.
#[derive(Debug)]
pub struct Drain {
    sender: watch::Sender<Option<DrainMode>>,
    open_work_tracker: TaskTracker,
}

impl Drain {
    /// Announces the drain. A later announcement may only be stricter: `Immediate`, or an earlier deadline.
    pub fn start(&self, mode: DrainMode) {
        self.sender.send_if_modified(|current| {
            let stricter = match (&current, mode) {
                (None, _) => true,
                (Some(DrainMode::Immediate), _) => false,
                (Some(DrainMode::Graceful { .. }), DrainMode::Immediate) => true,
                (
                    Some(DrainMode::Graceful { deadline: old }),
                    DrainMode::Graceful { deadline: new },
                ) => new < *old,
            };
            if stricter {
                *current = Some(mode);
            }
            stricter
        });
        self.open_work_tracker.close();
    }

    /// Announces the drain, waits for all open work until the deadline, and terminates the rest. Returns the number of
    /// terminated items, which get one further second to end.
    pub async fn finish(&self, mode: DrainMode) -> usize {
        self.start(mode);
        if let DrainMode::Graceful { deadline } = mode
            && tokio::time::timeout_at(deadline, self.open_work_tracker.wait())
                .await
                .is_ok()
        {
            return 0;
        }
        let cut = self.open_work_tracker.len();
        self.start(DrainMode::Immediate);
        if tokio::time::timeout(Duration::from_secs(1), self.open_work_tracker.wait())
            .await
            .is_err()
        {
            tracing::debug!(
                left = self.open_work_tracker.len(),
                "work did not end within a second of the cut"
            );
        }
        cut
    }

    /// Returns another watcher of the drain.
    pub fn watcher(&self) -> DrainWatcher {
        DrainWatcher {
            receiver: self.sender.subscribe(),
            open_work_tracker: self.open_work_tracker.clone(),
        }
    }

    /// Returns the number of open work items.
    pub fn open_work(&self) -> usize {
        self.open_work_tracker.len()
    }
}

/// Receiver of the drain's announcement, cloned for each piece of work.
#[derive(Clone, Debug)]
pub struct DrainWatcher {
    receiver: watch::Receiver<Option<DrainMode>>,
    open_work_tracker: TaskTracker,
}

impl DrainWatcher {
    /// Waits until the drain starts; forever if its owner is dropped.
    pub async fn wait_until_started(&mut self) -> DrainMode {
        match self
            .receiver
            .wait_for(Option::is_some)
            .await
            .map(|mode| *mode)
        {
            Ok(Some(mode)) => mode,
            _ => std::future::pending().await,
        }
    }

    /// Waits until open work must be terminated: at once for `Immediate`, else at the deadline, or earlier if an
    /// `Immediate` follows.
    pub async fn wait_until_deadline(&mut self) {
        loop {
            let DrainMode::Graceful { deadline } = self.wait_until_started().await else {
                return;
            };
            let mut receiver = self.receiver.clone();
            receiver.mark_unchanged();
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => return,
                changed = receiver.changed() => if changed.is_err() {
                    tokio::time::sleep_until(deadline).await;
                    return;
                },
            }
        }
    }

    /// Returns the announced mode, if any.
    pub fn mode(&self) -> Option<DrainMode> {
        *self.receiver.borrow()
    }

    /// Returns a guard that counts as open work until dropped.
    pub fn open_work(&self) -> OpenWork {
        OpenWork {
            _token: self.open_work_tracker.token(),
        }
    }
}

/// Guard of one piece of open work, which shutdown waits for.
#[derive(Debug)]
pub struct OpenWork {
    _token: TaskTrackerToken,
}

/// Returns the time for draining after SIGTERM: `explicit` if set; else slightly less than the pod's termination
/// grace period (5 s less above 10 s, else 1 s less, at least 1 s); else 5 s.
pub fn termination_deadline(
    explicit: Option<Duration>,
    grace_period_seconds: Option<u64>,
) -> Duration {
    explicit.unwrap_or_else(|| match grace_period_seconds {
        Some(grace) if grace > 10 => Duration::from_secs(grace - 5),
        Some(grace) => Duration::from_secs(grace.saturating_sub(1).max(1)),
        None => Duration::from_secs(5),
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::within;

    use super::*;
    use crate::spawn;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_graceful_drain_waits_for_open_work() {
        within(async {
            let (drain, watcher) = channel();
            let work = watcher.open_work();
            let mut noticed = watcher.clone();
            let worker = spawn("work", async move {
                let mode = noticed.wait_until_started().await;
                tokio::time::sleep(3 * SECOND).await;
                drop(work);
                mode
            });
            let began = Instant::now();
            assert_eq!(drain.finish(DrainMode::graceful(10 * SECOND)).await, 0);
            assert_eq!(began.elapsed(), 3 * SECOND);
            assert_eq!(worker.await.unwrap().deadline(), began + 10 * SECOND);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn open_work_is_terminated_at_the_deadline() {
        within(async {
            let (drain, watcher) = channel();
            let work = watcher.open_work();
            let mut cut = watcher.clone();
            let worker = spawn("work", async move {
                cut.wait_until_deadline().await;
                drop(work);
            });
            let began = Instant::now();
            assert_eq!(drain.finish(DrainMode::graceful(2 * SECOND)).await, 1);
            assert_eq!(began.elapsed(), 2 * SECOND);
            worker.await.unwrap();
            assert_eq!(drain.open_work(), 0);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_immediate_drain_overtakes_a_graceful_one() {
        within(async {
            let (drain, mut watcher) = channel();
            let began = Instant::now();
            drain.start(DrainMode::graceful(60 * SECOND));
            let cut = spawn("cut", async move { watcher.wait_until_deadline().await });
            tokio::task::yield_now().await;
            drain.start(DrainMode::Immediate);
            cut.await.unwrap();
            assert_eq!(began.elapsed(), Duration::ZERO);
            drain.start(DrainMode::graceful(60 * SECOND));
            assert_eq!(
                drain.watcher().mode(),
                Some(DrainMode::Immediate),
                "never less strict"
            );
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_watcher_whose_drain_is_gone_waits_forever() {
        within(async {
            let (drain, mut watcher) = channel();
            drop(drain);
            assert!(
                tokio::time::timeout(SECOND, watcher.wait_until_started())
                    .await
                    .is_err()
            );
        })
        .await;
    }

    #[test]
    fn the_deadline_leaves_room_within_the_grace_period() {
        let seconds = |explicit, grace| termination_deadline(explicit, grace).as_secs();
        assert_eq!(seconds(Some(2 * SECOND), Some(30)), 2);
        assert_eq!(seconds(None, Some(30)), 25);
        assert_eq!(seconds(None, Some(10)), 9);
        assert_eq!(seconds(None, Some(0)), 1);
        assert_eq!(seconds(None, None), 5);
    }
}
