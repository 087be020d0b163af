//! Plugin calls that wait until the source has sent their pod.

use std::time::Instant;

use super::call::{CniAdd, RequestId, WhichPod};

/// Plugin call for a pod that the source has not sent yet.
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

/// Plugin calls that wait for their pod, each with its deadline.
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
