//! Events that the enrolment handles, and effects that it returns.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ambit_model::{ArcStr, PodName};
use ambit_zds::PodUid;

use super::{
    call::{CniAdd, Reply, RequestId, WhichPod},
    step::{ProbeTargets, Step, StepId},
};
use crate::source::SourceEvent;

/// Event of the enrolment.
#[derive(Debug)]
pub enum Event<N> {
    /// Event of the source of pods and namespaces.
    Source(SourceEvent),
    /// The plugin requests the enrolment of a pod.
    CniAdd(RequestId, CniAdd<N>),
    /// Query by the plugin whether a pod belongs to the mesh.
    IsMember(RequestId, WhichPod),
    /// Namespaces that a finished scan found.
    Scanned(BTreeMap<PodUid, N>),
    /// A scan has ended with an error, so that no pod is known to run or not to.
    ScanFailed,
    /// End of a step; the error is a text for operators.
    StepDone {
        /// UID of the pod.
        uid: PodUid,
        /// Number of the step.
        id: StepId,
        /// Outcome of the step.
        result: Result<(), String>,
    },
    /// Redirection of a pod had drifted and was repaired.
    Repaired {
        /// UID of the pod.
        uid: PodUid,
        /// Text for operators.
        what: String,
    },
    /// A pod's redirection is in place, with these warnings for the operator, if any.
    Warned {
        /// UID of the pod.
        uid: PodUid,
        /// Texts for operators.
        warnings: Vec<String>,
    },
    /// A synced proxy connected, so steps that failed for lack of one are retried.
    ProxySynced,
    /// Regular request to compare the state with the kernel.
    Reconcile,
    /// The deadline has passed; see `Enrolment::deadline`.
    Tick,
}

/// Effect of the enrolment. Steps of different pods may run at once.
#[derive(Debug, PartialEq)]
pub enum Effect<N> {
    /// Carry a step out, then report [`Event::StepDone`].
    Step {
        /// UID of the pod.
        uid: PodUid,
        /// Id that the outcome repeats.
        id: StepId,
        /// Step to run.
        step: Step<N>,
    },
    /// Searches for these pods' namespaces, and reports [`Event::Scanned`] or [`Event::ScanFailed`].
    Scan(Vec<ScanTarget>),
    /// Responds to a call of the plugin.
    Answer(RequestId, Reply),
    /// Lets a proxy that serves the pod continue although the pod's namespace is not known.
    Hold(PodUid),
    /// All existing pods are known, so proxies may connect.
    OpenZds,
    /// Writes the namespaces, each with whether it may have mesh pods.
    WriteMembership(BTreeMap<ArcStr, bool>),
    /// Sets the complete members of the node's probe set.
    SetProbeMembers(Vec<(PodUid, ProbeTargets)>),
    /// Removes the status of all pods but these.
    PruneStatus(BTreeSet<PodName>),
    /// Report to the pod's owner that it cannot be enrolled and why, or that now it is.
    ReportFailure {
        /// UID of the pod.
        uid: PodUid,
        /// Name of the pod.
        pod: PodName,
        /// Failure of the last step, if it failed.
        failure: Option<String>,
    },
}

/// Pod whose network namespace is searched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanTarget {
    /// UID of the pod.
    pub uid: PodUid,
    /// Name of the pod's cgroup, if not its UID.
    pub cgroup_alias: Option<String>,
    /// Addresses, one of which its namespace must have.
    pub addresses: Vec<IpAddr>,
}
