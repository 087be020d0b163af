//! Plugin calls that wait until the source has sent their pod.

use std::time::Instant;

use super::call::{CniAdd, PodRef, RequestId};

/// Plugin call for a pod that the source has not sent yet.
#[derive(Clone, Debug)]
pub(super) enum ParkedCall<N> {
    CniAdd(CniAdd<N>),
    IsMember(PodRef),
}

impl<N> ParkedCall<N> {
    pub(super) fn pod_ref(&self) -> &PodRef {
        match self {
            Self::CniAdd(add) => &add.pod,
            Self::IsMember(which) => which,
        }
    }
}

/// Plugin calls that wait for their pod, each with its deadline.
#[derive(Debug)]
pub(super) struct ParkedCalls<N> {
    pub(super) calls: Vec<(RequestId, Instant, ParkedCall<N>)>,
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
