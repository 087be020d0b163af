//! What is known of a connection's caller, and how long a connection may last with that.
//!
//! Any client may connect; a call's token identifies it. Until the first call that is authenticated, the connection
//! holds one of the few slots for unknown callers, and not for long. Node proxies are then moved among those that may
//! stay; other accounts are served, and get GOAWAY when the same time is over. A client that presents one bad token
//! after the other is disconnected.

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
const FIRST_CALL: Duration = Duration::from_secs(20);
/// Number of rejected calls after which a connection is closed.
const REFUSALS: u32 = 8;

/// State of a connection's caller: among each request's extensions.
#[derive(Clone, Debug)]
pub struct CallerState(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    source: Option<IpAddr>,
    state: watch::Sender<State>,
    refusals: AtomicU32,
    lasting: Arc<Semaphore>,
}

#[derive(Debug)]
enum State {
    /// No call has been authenticated.
    Unknown,
    /// Service account without lasting streams here.
    Known,
    /// Connection that holds one of the slots of those that stay.
    Stays(#[expect(dead_code, reason = "held")] OwnedSemaphorePermit),
    /// Connection that repeatedly presents rejected credentials.
    Refused,
}

/// Why a connection ends before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A caller that is known but does not stay: in order.
    Leave,
    /// No call was authenticated in time.
    Silent,
    /// Too many calls were refused.
    Refused,
    /// A newer connection of the same address displaced this one.
    Displaced,
}

impl Ending {
    /// Returns the metric label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Leave => "leave",
            Self::Silent => "silent",
            Self::Refused => "refused",
            Self::Displaced => "displaced",
        }
    }

    /// Whether calls in flight are completed first.
    pub(super) fn is_in_order(self) -> bool {
        matches!(self, Self::Leave | Self::Refused)
    }
}

impl CallerState {
    /// Creates the state of a connection from `source` with an unknown caller; `lasting` are the slots of authenticated
    /// connections.
    pub(super) fn new(source: Option<IpAddr>, lasting: Arc<Semaphore>) -> Self {
        Self(Arc::new(Inner {
            source: source.map(|ip| ip.to_canonical()),
            state: watch::Sender::new(State::Unknown),
            refusals: AtomicU32::new(0),
            lasting,
        }))
    }

    /// Returns the state of a request's connection, and its source address.
    pub fn of(extensions: &http::Extensions) -> (Option<&Self>, IpAddr) {
        let caller_state = extensions.get::<Self>();
        let source = caller_state.and_then(|caller_state| caller_state.0.source);
        (
            caller_state,
            source.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        )
    }

    /// A call was authenticated; `stays` if its caller is one that keeps its connection.
    pub fn authenticated(&self, stays: bool) {
        self.0.state.send_if_modified(|state| {
            let permit = stays.then(|| self.0.lasting.clone().try_acquire_owned());
            *state = match (&*state, permit) {
                (State::Unknown | State::Known, Some(Ok(permit))) => State::Stays(permit),
                (State::Unknown, _) => State::Known,
                _ => return false,
            };
            true
        });
    }

    /// Records that a call was rejected for its credentials.
    pub fn refused(&self) {
        if self.0.refusals.fetch_add(1, Ordering::Relaxed) + 1 < REFUSALS {
            return;
        }
        self.0.state.send_if_modified(|state| {
            let unknown = matches!(state, State::Unknown | State::Known);
            if unknown {
                *state = State::Refused;
            }
            unknown
        });
    }

    /// Waits until the connection has to end for what its caller is; forever for those that stay.
    pub(super) async fn over(self, mut slot: Option<Slot>) -> Ending {
        let evicted = async {
            match &mut slot {
                Some(slot) => slot.evicted().await,
                None => std::future::pending().await,
            }
        };
        let mut follow = self.0.state.subscribe();
        let decided = follow.wait_for(|state| matches!(state, State::Stays(_) | State::Refused));
        let stays = tokio::select! {
            // The sender is held here: this never fails.
            decided = decided => decided.is_ok_and(|state| matches!(*state, State::Stays(_))),
            () = evicted => return Ending::Displaced,
            () = tokio::time::sleep(FIRST_CALL) => {
                return match *self.0.state.borrow() {
                    State::Known => Ending::Leave,
                    _ => Ending::Silent,
                };
            }
        };
        if !stays {
            return Ending::Refused;
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

    /// Takes a slot for an address.
    async fn slot(slots: &Slots) -> Option<Slot> {
        Some(slots.enter(SOURCE).await)
    }

    fn slots() -> Slots {
        Slots::new(SlotLimits {
            total: 1,
            each: 1,
            few: 1,
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_an_authenticated_call_ends() {
        let begin = tokio::time::Instant::now();
        assert_eq!(caller_state(1).over(None).await, Ending::Silent);
        assert_eq!(begin.elapsed().as_secs(), FIRST_CALL.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_that_does_not_stay_leaves_in_order() {
        let one = caller_state(1);
        one.authenticated(false);
        assert_eq!(one.over(None).await, Ending::Leave);
    }

    #[tokio::test(start_paused = true)]
    async fn bad_tokens_end_a_connection_unless_its_caller_is_known_to_stay() {
        let one = caller_state(1);
        for _ in 0..REFUSALS {
            one.refused();
        }
        assert_eq!(one.over(None).await, Ending::Refused);
        let one = caller_state(1);
        one.authenticated(true);
        for _ in 0..REFUSALS {
            one.refused();
        }
        let over = tokio::time::timeout(10 * FIRST_CALL, one.over(None)).await;
        assert!(over.is_err(), "it stays");
    }

    #[tokio::test(start_paused = true)]
    async fn long_callers_make_room_and_cannot_be_displaced() {
        let slots = slots();
        let one = caller_state(1);
        let over = tokio::spawn(one.clone().over(slot(&slots).await));
        one.authenticated(true);
        let second = caller_state(1).over(slot(&slots).await);
        let third = slot(&slots).await;
        assert_eq!(second.await, Ending::Displaced);
        assert!(!over.is_finished());
        drop(third);
    }

    #[tokio::test(start_paused = true)]
    async fn when_no_more_can_stay_a_caller_leaves_as_others_do() {
        let lasting = Arc::new(Semaphore::new(1));
        let [first, second] = [(); 2].map(|()| CallerState::new(None, Arc::clone(&lasting)));
        first.authenticated(true);
        second.authenticated(true);
        assert_eq!(second.over(None).await, Ending::Leave);
        drop(first);
        assert_eq!(lasting.available_permits(), 1);
    }
}
