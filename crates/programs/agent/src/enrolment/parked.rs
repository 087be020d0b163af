//! Plugin calls that wait until the source sends their pods.

use std::time::Instant;

use super::call::{CniAdd, RequestId, WhichPod};

/// A call that waits for its pod to be known.
#[derive(Clone, Debug)]
pub(super) enum Parked<N> {
    CniAdd(CniAdd<N>),
    IsMember(WhichPod),
}

impl<N> Parked<N> {
    pub(super) fn which(&self) -> &WhichPod {
        match self {
            Self::CniAdd(add) => &add.pod,
            Self::IsMember(which) => which,
        }
    }
}

/// Waiting calls, each with its deadline.
#[derive(Debug)]
pub(super) struct ParkedCalls<N> {
    pub(super) calls: Vec<(RequestId, Instant, Parked<N>)>,
}

impl<N> Default for ParkedCalls<N> {
    fn default() -> Self {
        Self { calls: Vec::new() }
    }
}

impl<N> ParkedCalls<N> {
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.calls.iter().map(|(_, until, _)| *until).min()
    }
}
