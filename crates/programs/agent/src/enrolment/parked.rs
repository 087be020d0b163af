//! Plugin calls that wait until the source of pods has sent the pod that they name.

use std::time::Instant;

use super::call::{CniAdd, PodRef, RequestId};

/// Call of the CNI plugin for a pod that the source of pods has not sent yet.
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

/// Calls of the CNI plugin that wait for their pod, each with its deadline.
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
