//! State that an HBONE connection shares with its tunnels: how many there are, when the last one was opened, and
//! whether tunnels with data to send make progress. The module does no IO.

use std::{
    any::Any,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::byte_receiver::ByteReceivers;

/// Time without progress of any blocked tunnel after which a connection counts as stalled.
const STALLED_AFTER: Duration = Duration::from_secs(1);

/// Permit of a connection limit, which is held until the connection closes.
pub trait Permit: Any + fmt::Debug + Send {
    /// Extends the permit to this number of bytes more, which the receive windows of the connection grow by. Returns
    /// false, and the windows stay, if the limit has no room for them.
    fn extend_to_larger_windows(&mut self, bytes: usize) -> bool;
}

/// Liveness of the workload at the other end of a connection, by the control plane's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Liveness {
    /// The control plane reports the workload as healthy, so its proxy is expected to respond.
    #[default]
    Healthy,
    /// The control plane reports the workload as not ready or terminating. PINGs check its connections often; tunnels
    /// continue while the proxy responds.
    Unhealthy,
    /// The control plane removed the workload or reassigned its address. Its connections take no new tunnels, and close
    /// when the peer does not respond or the drain timeout passes.
    Removed,
}

impl Liveness {
    fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Healthy,
            1 => Self::Unhealthy,
            _ => Self::Removed,
        }
    }
}

/// State of a connection that its owner, its driver and its tunnels share.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    pub(crate) streams: AtomicUsize,
    /// Milliseconds from `created_at` to the opening of the last tunnel.
    pub(crate) last_used_ms: AtomicUsize,
    pub(crate) created_at: Instant,
    /// Whether the connection takes no more tunnels and only serves its existing ones.
    pub(crate) is_retired: AtomicBool,
    /// Number of tunnels that cannot send, since the peer's flow-control windows are exhausted.
    pub(crate) blocked_tunnels: AtomicUsize,
    /// Milliseconds from `created_at` to the last time that a blocked tunnel could send, or that the first tunnel was
    /// blocked.
    pub(crate) last_progress_ms: AtomicUsize,
    pub(crate) byte_receivers: ByteReceivers,
    /// Permit of a connection limit. The connection holds it until it ends, or until the pool closes it unused.
    permit: Mutex<Option<Box<dyn Permit>>>,
    liveness: AtomicU8,
    /// Waker of the connection's driver, woken when `liveness` changes.
    pub(crate) driver_waker: AtomicWaker,
}

impl ConnectionState {
    /// Creates the state of a new connection without tunnels.
    pub(crate) fn new() -> Self {
        Self {
            streams: AtomicUsize::new(0),
            last_used_ms: AtomicUsize::new(0),
            created_at: Instant::now(),
            is_retired: AtomicBool::new(false),
            blocked_tunnels: AtomicUsize::new(0),
            last_progress_ms: AtomicUsize::new(0),
            byte_receivers: ByteReceivers::default(),
            permit: Mutex::default(),
            liveness: AtomicU8::default(),
            driver_waker: AtomicWaker::new(),
        }
    }

    pub(crate) fn liveness(&self) -> Liveness {
        Liveness::from_number(self.liveness.load(Ordering::Acquire))
    }

    /// Sets the liveness of the workload at the other end.
    pub(crate) fn set_liveness(&self, liveness: Liveness) {
        if liveness == Liveness::Removed {
            self.is_retired.store(true, Ordering::Relaxed);
        }
        let before = self.liveness.swap(liveness as u8, Ordering::AcqRel);
        if Liveness::from_number(before) != liveness {
            self.driver_waker.wake();
        }
    }

    pub(crate) fn set_permit(&self, permit: Option<Box<dyn Permit>>) {
        *self.permit.lock() = permit;
    }

    pub(crate) fn release_permit(&self) {
        drop(self.permit.lock().take());
    }

    /// Calls `read` with the connection's permit; `None` if it holds none.
    pub(crate) fn read_permit<T>(&self, read: impl FnOnce(&dyn Any) -> T) -> Option<T> {
        let permit = self.permit.lock();
        permit.as_deref().map(|permit| read(permit))
    }

    /// Calls `change` with the connection's permit, if it holds one.
    pub(crate) fn change_permit<T>(
        &self,
        change: impl FnOnce(&mut Option<Box<dyn Permit>>) -> T,
    ) -> T {
        change(&mut self.permit.lock())
    }

    pub(crate) fn idle_time(&self) -> Duration {
        let last = Duration::from_millis(self.last_used_ms.load(Ordering::Relaxed) as u64);
        self.created_at.elapsed().saturating_sub(last)
    }

    fn age_ms(&self) -> usize {
        usize::try_from(self.created_at.elapsed().as_millis()).unwrap_or(usize::MAX)
    }

    fn mark_used(&self) {
        self.last_used_ms.store(self.age_ms(), Ordering::Relaxed);
    }

    /// Whether tunnels are blocked by the peer's windows, and none of them could send anything for [`STALLED_AFTER`].
    pub(crate) fn is_stalled(&self) -> bool {
        let since = Duration::from_millis(self.last_progress_ms.load(Ordering::Relaxed) as u64);
        self.blocked_tunnels.load(Ordering::Relaxed) > 0
            && self.created_at.elapsed().saturating_sub(since) >= STALLED_AFTER
    }
}

/// Stream slot of a tunnel on its connection, released on drop.
#[derive(Debug)]
pub(crate) struct StreamLease {
    shared: Arc<ConnectionState>,
    is_blocked: bool,
}

impl StreamLease {
    pub(crate) fn acquire(shared: &Arc<ConnectionState>) -> Self {
        shared.streams.fetch_add(1, Ordering::Relaxed);
        shared.mark_used();
        Self {
            shared: shared.clone(),
            is_blocked: false,
        }
    }

    /// Returns the connection's state.
    pub(crate) fn connection(&self) -> &ConnectionState {
        &self.shared
    }

    /// Returns the connection's tunnels that are read as byte streams.
    pub(crate) fn byte_receivers(&self) -> &ByteReceivers {
        &self.shared.byte_receivers
    }

    /// Records whether the peer's windows block the tunnel's data.
    pub(crate) fn set_blocked(&mut self, is_blocked: bool) {
        if self.is_blocked == is_blocked {
            return;
        }
        self.is_blocked = is_blocked;
        let shared = &self.shared;
        let others = if is_blocked {
            shared.blocked_tunnels.fetch_add(1, Ordering::Relaxed)
        } else {
            shared.blocked_tunnels.fetch_sub(1, Ordering::Relaxed);
            0
        };
        if others == 0 {
            let now = shared.age_ms();
            shared.last_progress_ms.store(now, Ordering::Relaxed);
        }
    }
}

impl Drop for StreamLease {
    fn drop(&mut self) {
        if self.is_blocked {
            // The end of a blocked tunnel is no progress of the connection.
            self.shared.blocked_tunnels.fetch_sub(1, Ordering::Relaxed);
        }
        self.shared.streams.fetch_sub(1, Ordering::Relaxed);
    }
}
