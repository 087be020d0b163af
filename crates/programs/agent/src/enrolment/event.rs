//! Events that the enrolment state machine handles, and effects that it returns.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ambit_model::{ArcStr, PodName};
use ambit_zds::PodUid;

use super::{
    call::{CniAdd, PluginReply, PodRef, RequestId},
    step::{ProbeTargets, Step, StepId},
};
use crate::{capture::CaptureMethod, source::SourceEvent};

/// Event of the enrolment state machine.
#[derive(Debug)]
pub enum Event<N> {
    /// Event of the source of pods and namespaces.
    Source(SourceEvent),
    /// The plugin requests the enrolment of a pod.
    CniAdd(RequestId, CniAdd<N>),
    /// The plugin queries whether a pod belongs to the mesh.
    IsMember(RequestId, PodRef),
    /// A scan of `/proc` found these pods' namespaces.
    Scanned(BTreeMap<PodUid, N>),
    /// A scan of `/proc` failed, so it is unknown which pods run.
    ScanFailed,
    /// A step ended; an error is a text for operators.
    StepDone {
        /// UID of the pod.
        uid: PodUid,
        /// Id of the step.
        id: StepId,
        /// Outcome of the step.
        result: Result<(), String>,
    },
    /// The redirection of a pod differed from the desired state, and was repaired.
    Repaired {
        /// UID of the pod.
        uid: PodUid,
        /// Differences that were repaired, as text for operators.
        what: String,
    },
    /// The redirection of a pod is in place, with these warnings, if any.
    Applied {
        /// UID of the pod.
        uid: PodUid,
        /// Method by which the pod is captured.
        method: CaptureMethod,
        /// Warnings for operators.
        warnings: Vec<String>,
    },
    /// A proxy that knows all pods is connected; steps that failed for lack of one are retried.
    ProxySynced,
    /// The regular comparison of all pods with the kernel is due.
    Reconcile,
    /// The state machine's deadline has passed, see `Enrolment::deadline`.
    Tick,
}

/// Effect that the enrolment state machine requests. Steps of different pods may run concurrently.
#[derive(Debug, PartialEq)]
pub enum Effect<N> {
    /// Carries out a step, and reports [`Event::StepDone`].
    Step {
        /// UID of the pod.
        uid: PodUid,
        /// Id of the step, which [`Event::StepDone`] repeats.
        id: StepId,
        /// Step to carry out.
        step: Step<N>,
    },
    /// Searches for these pods' namespaces, and reports [`Event::Scanned`] or [`Event::ScanFailed`].
    Scan(Vec<ScanTarget>),
    /// Responds to a call of the plugin.
    Reply(RequestId, PluginReply),
    /// Lets a node proxy that already serves the pod continue, although the pod's network namespace is not known yet.
    HoldPod(PodUid),
    /// Lets node proxies connect, since all existing pods are known.
    OpenZds,
    /// Writes for each namespace whether it may have mesh pods, for the plugin.
    WriteMembership(BTreeMap<ArcStr, bool>),
    /// Replaces all members of the node's probe set.
    SetProbeMembers(Vec<(PodUid, ProbeTargets)>),
    /// Removes the status annotations of all pods of the node, except for these pods.
    PruneStatus(BTreeSet<PodName>),
    /// Reports to the pod's owner why the pod cannot be enrolled, or that it is enrolled now.
    ReportFailure {
        /// UID of the pod.
        uid: PodUid,
        /// Name of the pod.
        pod: PodName,
        /// Error of the last step; `None` if the pod is enrolled now.
        failure: Option<String>,
    },
}

/// Pod whose network namespace a scan searches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanTarget {
    /// UID of the pod.
    pub uid: PodUid,
    /// Name of the pod's cgroup if it is not named by the UID.
    pub cgroup_alias: Option<String>,
    /// Addresses of the pod, one of which its namespace must have.
    pub addresses: Vec<IpAddr>,
}
