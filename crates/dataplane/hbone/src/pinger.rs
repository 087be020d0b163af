//! Liveness of a connection: when to send a PING, and when to give the connection up.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use h2::{Ping, PingPong};
use tokio::time::{Instant, Sleep};

use crate::Settings;

/// A peer that did not answer a PING in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer did not answer an HTTP/2 PING within {0:?}")]
pub struct PingTimeout(Duration);

/// The next action.
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
    /// The timer has fired: the next action, and the time until it fires again.
    fn on_timer(&mut self) -> (Effect, Duration) {
        if self.awaiting {
            return (Effect::GiveUp, self.interval);
        }
        self.awaiting = true;
        (Effect::Ping, self.timeout)
    }

    /// The answer arrived: the time until the timer fires.
    fn on_pong(&mut self) -> Duration {
        self.awaiting = false;
        self.interval
    }
}

/// Checks that one connection is alive. Polled with the connection it belongs to.
#[derive(Debug)]
pub(crate) struct Pinger {
    ping: Option<PingPong>,
    state: State,
    timer: Pin<Box<Sleep>>,
}

impl Pinger {
    pub(crate) fn new(ping: Option<PingPong>, settings: &Settings) -> Self {
        let state = State {
            awaiting: false,
            interval: settings.ping_interval,
            timeout: settings.ping_timeout,
        };
        let timer = Box::pin(tokio::time::sleep(settings.ping_interval));
        Self { ping, state, timer }
    }

    /// Pending as long as the peer answers. `on_tick` runs once an interval.
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
    fn an_unanswered_ping_ends_it_and_an_answered_one_does_not() {
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
}
