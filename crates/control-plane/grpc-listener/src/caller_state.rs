//! Authentication state of a connection's caller, and the lifetime of the connection by that state.
//!
//! Any client may connect; a call's token identifies it. Until the first authenticated call, the
//! connection holds one of the few slots for unauthenticated callers, and is closed after a short
//! timeout. The connection of a node proxy then moves to the slots of long-lived connections; other
//! accounts are served, and get GOAWAY after the same timeout. A client that keeps presenting
//! invalid tokens is disconnected.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use ambit_rt::Slot;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Timeout from the handshake to the first authenticated call, including a token review.
const FIRST_CALL_TIMEOUT: Duration = Duration::from_secs(20);
/// Number of rejected calls after which a connection is closed.
const MAX_REFUSED_CALLS: u32 = 8;

/// Authentication state of a connection's caller, in the extensions of its requests.
#[derive(Clone, Debug)]
pub struct CallerState(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    source: Option<IpAddr>,
    state: watch::Sender<State>,
    rejected_calls: AtomicU32,
    long_lived_permits: Arc<Semaphore>,
}

#[derive(Debug)]
enum State {
    /// No call has been authenticated yet.
    Unknown,
    /// A call was authenticated; the caller's service account keeps no long-lived streams.
    Authenticated,
    /// The caller keeps long-lived streams; the connection holds one of their slots.
    LongLived(#[expect(dead_code, reason = "held")] OwnedSemaphorePermit),
    /// Calls were rejected for their credentials [`MAX_REFUSED_CALLS`] times.
    TooManyRejections,
}

/// Reason why a connection is closed before its maximum age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionCloseReason {
    /// The caller is authenticated but keeps no long-lived streams; calls in flight complete first.
    NotLongLived,
    /// No call was authenticated before the timeout.
    NoAuthenticatedCall,
    /// Too many calls were rejected.
    TooManyRejections,
    /// A newer connection of the same address took the slot.
    SlotTaken,
}

impl ConnectionCloseReason {
    /// Returns the value of the label `reason` in the metric of closed connections.
    pub fn label(self) -> &'static str {
        match self {
            Self::NotLongLived => "leave",
            Self::NoAuthenticatedCall => "silent",
            Self::TooManyRejections => "refused",
            Self::SlotTaken => "displaced",
        }
    }

    /// Returns whether calls in flight complete before the connection is closed.
    pub(super) fn is_graceful(self) -> bool {
        matches!(self, Self::NotLongLived | Self::TooManyRejections)
    }
}

impl CallerState {
    /// Creates the state of a connection from `source` whose caller is not authenticated yet; `lasting` limits the
    /// number of long-lived connections.
    pub(super) fn new(source: Option<IpAddr>, lasting: Arc<Semaphore>) -> Self {
        Self(Arc::new(Inner {
            source: source.map(|ip| ip.to_canonical()),
            state: watch::Sender::new(State::Unknown),
            rejected_calls: AtomicU32::new(0),
            long_lived_permits: lasting,
        }))
    }

    /// Returns the authentication state of a request's connection, and its source address.
    pub fn from_extensions(extensions: &http::Extensions) -> (Option<&Self>, IpAddr) {
        let caller_state = extensions.get::<Self>();
        let source = caller_state.and_then(|caller_state| caller_state.0.source);
        (
            caller_state,
            source.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        )
    }

    /// Records an authenticated call. `stays` is true if the caller keeps long-lived streams.
    pub fn set_authenticated(&self, stays: bool) {
        self.0.state.send_if_modified(|state| {
            let permit = stays.then(|| self.0.long_lived_permits.clone().try_acquire_owned());
            *state = match (&*state, permit) {
                (State::Unknown | State::Authenticated, Some(Ok(permit))) => {
                    State::LongLived(permit)
                }
                (State::Unknown, _) => State::Authenticated,
                _ => return false,
            };
            true
        });
    }

    /// Records that a call was rejected for its credentials.
    pub fn count_rejected_call(&self) {
        if self.0.rejected_calls.fetch_add(1, Ordering::Relaxed) + 1 < MAX_REFUSED_CALLS {
            return;
        }
        self.0.state.send_if_modified(|state| {
            let unknown = matches!(state, State::Unknown | State::Authenticated);
            if unknown {
                *state = State::TooManyRejections;
            }
            unknown
        });
    }

    /// Waits until the caller's state requires the connection to be closed; never completes for long-lived connections.
    pub(super) async fn wait_for_close_reason(
        self,
        mut slot: Option<Slot>,
    ) -> ConnectionCloseReason {
        let evicted = async {
            match &mut slot {
                Some(slot) => slot.wait_until_evicted().await,
                None => std::future::pending().await,
            }
        };
        let mut follow = self.0.state.subscribe();
        let decided = follow
            .wait_for(|state| matches!(state, State::LongLived(_) | State::TooManyRejections));
        let stays = tokio::select! {
            // `self` holds the sender, so this never fails.
            decided = decided => decided.is_ok_and(|state| matches!(*state, State::LongLived(_))),
            () = evicted => return ConnectionCloseReason::SlotTaken,
            () = tokio::time::sleep(FIRST_CALL_TIMEOUT) => {
                return match *self.0.state.borrow() {
                    State::Authenticated => ConnectionCloseReason::NotLongLived,
                    _ => ConnectionCloseReason::NoAuthenticatedCall,
                };
            }
        };
        if !stays {
            return ConnectionCloseReason::TooManyRejections;
        }
        drop(slot);
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use ambit_rt::{SlotLimits, Slots};

    use super::*;

    const SOURCE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    fn caller_state(lasting: usize) -> CallerState {
        CallerState::new(Some(SOURCE), Arc::new(Semaphore::new(lasting)))
    }

    /// Takes a slot for unauthenticated connections from an address.
    async fn acquire_slot(slots: &Slots) -> Option<Slot> {
        Some(slots.acquire(SOURCE).await)
    }

    fn slots() -> Slots {
        Slots::new(SlotLimits {
            total: 1,
            per_source: 1,
            protected_per_source: 1,
        })
    }

    #[tokio::test(start_paused = true)]
    async fn connection_without_an_authenticated_call_is_closed() {
        let begin = tokio::time::Instant::now();
        assert_eq!(
            caller_state(1).wait_for_close_reason(None).await,
            ConnectionCloseReason::NoAuthenticatedCall
        );
        assert_eq!(begin.elapsed().as_secs(), FIRST_CALL_TIMEOUT.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn short_lived_caller_is_closed_after_its_calls() {
        let one = caller_state(1);
        one.set_authenticated(false);
        assert_eq!(
            one.wait_for_close_reason(None).await,
            ConnectionCloseReason::NotLongLived
        );
    }

    #[tokio::test(start_paused = true)]
    async fn bad_tokens_close_a_connection_unless_it_is_long_lived() {
        let one = caller_state(1);
        for _ in 0..MAX_REFUSED_CALLS {
            one.count_rejected_call();
        }
        assert_eq!(
            one.wait_for_close_reason(None).await,
            ConnectionCloseReason::TooManyRejections
        );
        let one = caller_state(1);
        one.set_authenticated(true);
        for _ in 0..MAX_REFUSED_CALLS {
            one.count_rejected_call();
        }
        let over =
            tokio::time::timeout(10 * FIRST_CALL_TIMEOUT, one.wait_for_close_reason(None)).await;
        assert!(over.is_err(), "it stays");
    }

    #[tokio::test(start_paused = true)]
    async fn long_lived_callers_free_their_slot_and_are_not_evicted() {
        let slots = slots();
        let one = caller_state(1);
        let over = tokio::spawn(
            one.clone()
                .wait_for_close_reason(acquire_slot(&slots).await),
        );
        one.set_authenticated(true);
        let second = caller_state(1).wait_for_close_reason(acquire_slot(&slots).await);
        let third = acquire_slot(&slots).await;
        assert_eq!(second.await, ConnectionCloseReason::SlotTaken);
        assert!(!over.is_finished());
        drop(third);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_free_slot_a_long_lived_caller_is_closed() {
        let lasting = Arc::new(Semaphore::new(1));
        let [first, second] = [(); 2].map(|()| CallerState::new(None, Arc::clone(&lasting)));
        first.set_authenticated(true);
        second.set_authenticated(true);
        assert_eq!(
            second.wait_for_close_reason(None).await,
            ConnectionCloseReason::NotLongLived
        );
        drop(first);
        assert_eq!(lasting.available_permits(), 1);
    }
}
