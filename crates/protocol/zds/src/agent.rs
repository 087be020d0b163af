//! Agent's side of the ZDS connection to one node proxy: hello, snapshot, then one request at a time.
//!
//! Acknowledgements belong to requests by order alone, so a late acknowledgement must never count for the next request.
//! The agent sends a request only after the last one is acknowledged, and closes the connection to a proxy that does
//! not respond; the snapshot of the next connection repeats all pods.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use crate::message::{Ack, PodUid, Request};

/// Timeout for the hello of a node proxy that has connected.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of an acknowledgement, after which the agent closes the connection. Callers get an error earlier, see
/// [`crate::Registry`]. The timeout is long because reconnecting does not help a slow proxy.
const ACK_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of unsent requests. The agent closes the connection to a proxy that is too slow for this limit.
const MAX_QUEUED_REQUESTS: usize = 4096;

/// Kind of the record that is expected next on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedRecord {
    /// Hello of the node proxy.
    Hello,
    /// Acknowledgement of a request.
    Ack,
    /// No record is expected: any record is a protocol violation.
    None,
}

/// Effect of an event on the agent's side, which the caller must carry out in order.
#[derive(Debug, PartialEq, Eq)]
pub enum AgentEffect<N> {
    /// Sends a request, with the file descriptor of the pod's network namespace.
    Send(Request, Option<N>),
    /// Reports the acknowledgement of a request that was sent.
    Acknowledged(Request, Option<N>, Ack),
    /// Closes the connection. No further effects follow.
    Close(CloseReason),
}

/// Reason why the agent closes a connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The proxy connected, but sent no hello in time.
    #[error("no hello within {HELLO_TIMEOUT:?}")]
    NoHello,
    /// The proxy did not acknowledge a request in time.
    #[error("no answer within {ACK_TIMEOUT:?}")]
    NoAcknowledgement,
    /// The proxy sent a record that ZDS does not allow at this point.
    #[error("unexpected record: {0}")]
    UnexpectedRecord(String),
    /// More than `MAX_QUEUED_REQUESTS` requests wait to be sent.
    #[error("more than {MAX_QUEUED_REQUESTS} requests wait for the proxy")]
    QueueOverflow,
}

#[derive(Debug)]
enum Phase<N> {
    AwaitHello {
        until: Instant,
    },
    Idle,
    AwaitAck {
        until: Instant,
        request: Request,
        netns: Option<N>,
    },
    Closed,
}

/// State of the agent's side of one ZDS connection.
#[derive(Debug)]
pub struct AgentSide<N> {
    phase: Phase<N>,
    queue: VecDeque<(Request, Option<N>)>,
}

impl<N: Clone> AgentSide<N> {
    /// Creates the state of a connection that was accepted at `now`.
    pub fn new(now: Instant) -> Self {
        Self {
            phase: Phase::AwaitHello {
                until: now + HELLO_TIMEOUT,
            },
            queue: VecDeque::new(),
        }
    }

    /// Returns the kind of the record that is expected next.
    pub fn expected_record(&self) -> ExpectedRecord {
        match self.phase {
            Phase::AwaitHello { .. } => ExpectedRecord::Hello,
            Phase::AwaitAck { .. } => ExpectedRecord::Ack,
            Phase::Idle | Phase::Closed => ExpectedRecord::None,
        }
    }

    /// Whether the proxy has sent its hello and the connection is not closed.
    pub fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Idle | Phase::AwaitAck { .. })
    }

    /// Returns the time at which the caller must call [`Self::on_tick`], if any.
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::AwaitHello { until } | Phase::AwaitAck { until, .. } => Some(until),
            Phase::Idle | Phase::Closed => None,
        }
    }

    /// Handles the proxy's hello: sends an `Add` or `Keep` for each pod, then [`Request::SnapshotSent`].
    pub fn on_hello(
        &mut self,
        snapshot: impl IntoIterator<Item = (Request, Option<N>)>,
        now: Instant,
    ) -> Vec<AgentEffect<N>> {
        if !matches!(self.phase, Phase::AwaitHello { .. }) {
            return self.on_unexpected("a second hello".to_owned());
        }
        self.phase = Phase::Idle;
        self.queue.extend(snapshot);
        self.queue.push_back((Request::SnapshotSent, None));
        self.send_next(now)
    }

    /// Handles an acknowledgement of the proxy.
    pub fn on_ack(&mut self, ack: Ack, now: Instant) -> Vec<AgentEffect<N>> {
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::AwaitAck { request, netns, .. } => {
                let mut effects = vec![AgentEffect::Acknowledged(request, netns, ack)];
                effects.append(&mut self.send_next(now));
                effects
            }
            other => {
                self.phase = other;
                self.on_unexpected("an answer to no request".to_owned())
            }
        }
    }

    /// Handles a record of another kind than [`Self::expected_record`] returns: closes the connection.
    pub fn on_unexpected(&mut self, what: String) -> Vec<AgentEffect<N>> {
        self.close_connection(CloseReason::UnexpectedRecord(what))
    }

    /// Checks whether the timeout of the hello or acknowledgement has expired, and closes the connection if so.
    pub fn on_tick(&mut self, now: Instant) -> Vec<AgentEffect<N>> {
        match self.phase {
            Phase::AwaitHello { until } if until <= now => {
                self.close_connection(CloseReason::NoHello)
            }
            Phase::AwaitAck { until, .. } if until <= now => {
                self.close_connection(CloseReason::NoAcknowledgement)
            }
            _ => Vec::new(),
        }
    }

    /// Queues a request, which is sent when all earlier requests are acknowledged. An `Add` replaces an unsent `Add` of
    /// the same pod. Has no effect before the hello and after the close.
    pub fn enqueue(
        &mut self,
        request: Request,
        netns: Option<N>,
        now: Instant,
    ) -> Vec<AgentEffect<N>> {
        if !self.is_open() {
            return Vec::new();
        }
        if let Request::Add { uid, .. } = &request {
            self.forget_unsent_add(uid);
        }
        if self.queue.len() >= MAX_QUEUED_REQUESTS {
            return self.close_connection(CloseReason::QueueOverflow);
        }
        self.queue.push_back((request, netns));
        self.send_next(now)
    }

    fn forget_unsent_add(&mut self, uid: &PodUid) {
        // An add within the snapshot stays: the proxy stops pods that a snapshot leaves out.
        let after = self
            .queue
            .iter()
            .position(|(request, _)| matches!(request, Request::SnapshotSent))
            .map_or(0, |end| end + 1);
        let mut index = 0;
        self.queue.retain(|(request, _)| {
            let keep =
                index < after || !matches!(request, Request::Add { uid: of, .. } if of == uid);
            index += 1;
            keep
        });
    }

    fn send_next(&mut self, now: Instant) -> Vec<AgentEffect<N>> {
        if !matches!(self.phase, Phase::Idle) {
            return Vec::new();
        }
        let Some((request, netns)) = self.queue.pop_front() else {
            return Vec::new();
        };
        let effect = AgentEffect::Send(request.clone(), netns.clone());
        self.phase = Phase::AwaitAck {
            until: now + ACK_TIMEOUT,
            request,
            netns,
        };
        vec![effect]
    }

    fn close_connection(&mut self, reason: CloseReason) -> Vec<AgentEffect<N>> {
        if matches!(self.phase, Phase::Closed) {
            return Vec::new();
        }
        self.phase = Phase::Closed;
        self.queue.clear();
        vec![AgentEffect::Close(reason)]
    }
}
