//! Keepalive of an HBONE connection: sends HTTP/2 PINGs, and closes the connection when an acknowledgement is
//! missing.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use h2::{Ping, PingPong};
use tokio::time::{Instant, Sleep};

use crate::{Settings, lease::Liveness};

/// Interval of PINGs to a peer whose workload is not ready or removed.
const UNREADY_PEER_PING_INTERVAL: Duration = Duration::from_secs(1);
/// PING timeout of a peer whose workload is not ready. Its proxy acknowledges PINGs, not the unready application.
const UNHEALTHY_PEER_PING_TIMEOUT: Duration = Duration::from_secs(5);
/// PING timeout for a peer whose workload was removed; it is short, since such a peer rarely responds.
const REMOVED_PEER_PING_TIMEOUT: Duration = Duration::from_secs(1);

/// Error of a peer that did not acknowledge a PING within this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer did not answer an HTTP/2 PING within {0:?}")]
pub struct PingTimeout(Duration);

/// Action that [`PingState`] requests when its timer fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PingAction {
    SendPing,
    CloseConnection,
}

#[derive(Debug)]
struct PingState {
    awaits_pong: bool,
    interval: Duration,
    timeout: Duration,
}

impl PingState {
    /// Handles the timer: returns the next action, and the time until the timer fires again.
    fn on_timer(&mut self) -> (PingAction, Duration) {
        if self.awaits_pong {
            return (PingAction::CloseConnection, self.interval);
        }
        self.awaits_pong = true;
        (PingAction::SendPing, self.timeout)
    }

    /// Handles the acknowledgement of a PING, and returns the delay until the next PING.
    fn on_pong(&mut self) -> Duration {
        self.awaits_pong = false;
        self.interval
    }

    /// Handles a new interval and timeout of PINGs: returns the time until the timer fires.
    fn on_timing_change(&mut self, interval: Duration, timeout: Duration) -> Duration {
        self.interval = interval;
        self.timeout = timeout;
        match self.awaits_pong {
            true => timeout,
            false => Duration::ZERO,
        }
    }
}

/// Sends PINGs on one connection to check that its peer responds; polled together with that connection.
#[derive(Debug)]
pub(crate) struct Pinger {
    ping: Option<PingPong>,
    state: PingState,
    timer: Pin<Box<Sleep>>,
    /// Interval and timeout of PINGs to a peer that is expected to respond.
    default_interval_and_timeout: (Duration, Duration),
}

impl Pinger {
    pub(crate) fn new(ping: Option<PingPong>, settings: &Settings) -> Self {
        let state = PingState {
            awaits_pong: false,
            interval: settings.ping_interval,
            timeout: settings.ping_timeout,
        };
        let timer = Box::pin(tokio::time::sleep(settings.ping_interval));
        Self {
            ping,
            state,
            timer,
            default_interval_and_timeout: (settings.ping_interval, settings.ping_timeout),
        }
    }

    /// Adapts the interval and timeout of PINGs to the peer's liveness.
    pub(crate) fn adapt_to_liveness(&mut self, liveness: Liveness) {
        let (interval, timeout) = match liveness {
            Liveness::Healthy => self.default_interval_and_timeout,
            Liveness::Unhealthy => (UNREADY_PEER_PING_INTERVAL, UNHEALTHY_PEER_PING_TIMEOUT),
            Liveness::Removed => (UNREADY_PEER_PING_INTERVAL, REMOVED_PEER_PING_TIMEOUT),
        };
        let wait = self.state.on_timing_change(interval, timeout);
        self.timer.as_mut().reset(Instant::now() + wait);
    }

    /// Sends PINGs, and completes with an error when an acknowledgement is missing. Calls `on_tick` whenever the timer
    /// fires.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut on_tick: impl FnMut(),
    ) -> Poll<PingTimeout> {
        let Some(ping) = &mut self.ping else {
            return Poll::Pending;
        };
        loop {
            if self.state.awaits_pong && matches!(ping.poll_pong(cx), Poll::Ready(Ok(_))) {
                let wait = self.state.on_pong();
                self.timer.as_mut().reset(Instant::now() + wait);
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            on_tick();
            let (effect, wait) = self.state.on_timer();
            match effect {
                PingAction::CloseConnection => return Poll::Ready(PingTimeout(self.state.timeout)),
                PingAction::SendPing => {
                    // A PING that cannot be sent belongs to a connection that is ending: the connection itself
                    // will report it.
                    if ping.send_ping(Ping::opaque()).is_err() {
                        self.state.on_pong();
                    }
                    self.timer.as_mut().reset(Instant::now() + wait);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unanswered_ping_closes_the_connection() {
        let (interval, timeout) = (Duration::from_secs(10), Duration::from_secs(20));
        let mut state = PingState {
            awaits_pong: false,
            interval,
            timeout,
        };
        assert_eq!(state.on_timer(), (PingAction::SendPing, timeout));
        assert_eq!(state.on_pong(), interval);
        assert_eq!(state.on_timer(), (PingAction::SendPing, timeout));
        assert_eq!(state.on_timer().0, PingAction::CloseConnection);
    }

    #[test]
    fn doubtful_peer_is_pinged_at_once_with_a_shorter_timeout() {
        let (default_interval_and_timeout, shorter) =
            (Duration::from_secs(20), Duration::from_secs(1));
        let mut state = PingState {
            awaits_pong: false,
            interval: default_interval_and_timeout,
            timeout: default_interval_and_timeout,
        };
        assert_eq!(state.on_timing_change(shorter, shorter), Duration::ZERO);
        assert_eq!(state.on_timer(), (PingAction::SendPing, shorter));
        assert_eq!(
            state.on_timing_change(default_interval_and_timeout, default_interval_and_timeout),
            default_interval_and_timeout
        );
        assert_eq!(state.on_timing_change(shorter, shorter), shorter);
        assert_eq!(state.on_pong(), shorter);
    }
}
