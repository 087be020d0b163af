//! Liveness of a connection: when to send a PING, and when to give the connection up.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use h2::{Ping, PingPong};
use tokio::time::{Instant, Sleep};

use crate::{Settings, lease::Liveness};

/// Interval of pings to a peer that is suspected or known to be gone.
const CLOSE_INTERVAL: Duration = Duration::from_secs(1);
/// PING timeout of a suspected peer. Its proxy responds to PINGs, not the unready application.
const DOUBTFUL_TIMEOUT: Duration = Duration::from_secs(5);
/// PING timeout of a removed peer, which most probably does not respond.
const GONE_TIMEOUT: Duration = Duration::from_secs(1);

/// Error of a peer that did not acknowledge a PING in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer did not answer an HTTP/2 PING within {0:?}")]
pub struct PingTimeout(Duration);

/// Next action of the pinger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Ping,
    GiveUp,
}

#[derive(Debug)]
struct State {
    awaiting: bool,
    interval: Duration,
    timeout: Duration,
}

impl State {
    /// Handles the timer: returns the next action, and the time until the timer fires again.
    fn on_timer(&mut self) -> (Effect, Duration) {
        if self.awaiting {
            return (Effect::GiveUp, self.interval);
        }
        self.awaiting = true;
        (Effect::Ping, self.timeout)
    }

    /// Handles the acknowledgement, and returns the time to the next PING.
    fn on_pong(&mut self) -> Duration {
        self.awaiting = false;
        self.interval
    }

    /// Returns the time until the timer fires, after the interval and timeout of the checks
    /// changed.
    fn on_change(&mut self, interval: Duration, timeout: Duration) -> Duration {
        self.interval = interval;
        self.timeout = timeout;
        match self.awaiting {
            true => timeout,
            false => Duration::ZERO,
        }
    }
}

/// Checks that one connection is alive. Polled with the connection it belongs to.
#[derive(Debug)]
pub(crate) struct Pinger {
    ping: Option<PingPong>,
    state: State,
    timer: Pin<Box<Sleep>>,
    /// Interval and timeout for a healthy peer.
    usual: (Duration, Duration),
}

impl Pinger {
    pub(crate) fn new(ping: Option<PingPong>, settings: &Settings) -> Self {
        let state = State {
            awaiting: false,
            interval: settings.ping_interval,
            timeout: settings.ping_timeout,
        };
        let timer = Box::pin(tokio::time::sleep(settings.ping_interval));
        Self {
            ping,
            state,
            timer,
            usual: (settings.ping_interval, settings.ping_timeout),
        }
    }

    /// Adapts the interval and timeout to the peer's liveness, beginning now.
    pub(crate) fn follow(&mut self, liveness: Liveness) {
        let (interval, timeout) = match liveness {
            Liveness::Expected => self.usual,
            Liveness::Doubtful => (CLOSE_INTERVAL, DOUBTFUL_TIMEOUT),
            Liveness::Gone => (CLOSE_INTERVAL, GONE_TIMEOUT),
        };
        let wait = self.state.on_change(interval, timeout);
        self.timer.as_mut().reset(Instant::now() + wait);
    }

    /// Polls the pinger: pending while the peer acknowledges. `on_tick` runs once per interval.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut on_tick: impl FnMut(),
    ) -> Poll<PingTimeout> {
        let Some(ping) = &mut self.ping else {
            return Poll::Pending;
        };
        loop {
            if self.state.awaiting && matches!(ping.poll_pong(cx), Poll::Ready(Ok(_))) {
                let wait = self.state.on_pong();
                self.timer.as_mut().reset(Instant::now() + wait);
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            on_tick();
            let (effect, wait) = self.state.on_timer();
            match effect {
                Effect::GiveUp => return Poll::Ready(PingTimeout(self.state.timeout)),
                Effect::Ping => {
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
        let mut state = State {
            awaiting: false,
            interval,
            timeout,
        };
        assert_eq!(state.on_timer(), (Effect::Ping, timeout));
        assert_eq!(state.on_pong(), interval);
        assert_eq!(state.on_timer(), (Effect::Ping, timeout));
        assert_eq!(state.on_timer().0, Effect::GiveUp);
    }

    #[test]
    fn doubtful_peer_is_pinged_at_once_with_a_shorter_timeout() {
        let (usual, shorter) = (Duration::from_secs(20), Duration::from_secs(1));
        let mut state = State {
            awaiting: false,
            interval: usual,
            timeout: usual,
        };
        assert_eq!(state.on_change(shorter, shorter), Duration::ZERO);
        assert_eq!(state.on_timer(), (Effect::Ping, shorter));
        assert_eq!(state.on_change(usual, usual), usual);
        assert_eq!(state.on_change(shorter, shorter), shorter);
        assert_eq!(state.on_pong(), shorter);
    }
}
