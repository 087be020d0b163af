//! Steps that enrol and unenrol pods: one enum for each executor in
//! `process/executor.rs`.

use std::net::IpAddr;

use ambit_model::PodName;
use ambit_netplan::{ProbePorts, RedirectionSpec};
use ambit_zds::WorkloadInfo;

use crate::source::RedirectionStatus;

/// Id of a started step, by which its outcome is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepId(pub(super) u64);

/// Step of one pod's enrolment or unenrolment.
#[derive(Clone, Debug, PartialEq)]
pub enum Step<N> {
    /// Order to the node proxies.
    Proxy(ProxyStep<N>),
    /// Change of the rules in the pod's network namespace.
    Redirection(RedirectionStep<N>),
    /// Change of the node's set of exempt probes.
    Probes(ProbeStep),
    /// Change of the pod's status annotation.
    Status(WriteStatus),
}

/// Order to the node proxies about a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum ProxyStep<N> {
    /// Orders the newest node proxy to serve the pod.
    Announce {
        /// Name and addresses of the pod.
        info: WorkloadInfo,
        /// Network namespace of the pod.
        netns: N,
    },
    /// Orders every node proxy to stop serving the pod.
    Withdraw,
}

/// Change of the redirection in a pod's network namespace.
#[derive(Clone, Debug, PartialEq)]
pub enum RedirectionStep<N> {
    /// Applies the redirection, or repairs it.
    Apply {
        /// Name and addresses of the pod, for its proxy if BPF programs capture it.
        info: WorkloadInfo,
        /// Name of the pod's cgroup if it is not named by the UID.
        cgroup_alias: Option<String>,
        /// Network namespace of the pod.
        netns: N,
        /// Redirection to apply.
        spec: RedirectionSpec,
        /// Whether to close pre-capture connections if no redirection is in place yet, since the pod is captured late
        /// (see `enrolment/late_capture.rs`).
        close_pre_capture: bool,
    },
    /// Removes the redirection, if there is any; connections in the proxy continue.
    Release {
        /// Network namespace of the pod.
        netns: N,
    },
}

/// Change of the exemption of one pod for kubelet's probes.
#[derive(Clone, Debug, PartialEq)]
pub enum ProbeStep {
    /// Exempts exactly these addresses and ports of the pod.
    Exempt(ProbeTargets),
    /// Removes the pod's addresses from the exemption.
    Remove,
}

/// Addresses and ports of a pod that are exempt for kubelet's probes.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeTargets {
    /// Addresses of the pod.
    pub addresses: Vec<IpAddr>,
    /// Ports that are exempt at each address.
    pub ports: ProbePorts,
}

/// Writes or removes the pod's status annotation.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteStatus {
    /// Name of the pod.
    pub pod: PodName,
    /// Value to write; [`RedirectionStatus::None`] removes the annotation.
    pub status: RedirectionStatus,
}

impl<N> Step<N> {
    /// Returns the name of the step in metrics and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Proxy(ProxyStep::Announce { .. }) => "announce",
            Self::Proxy(ProxyStep::Withdraw) => "withdraw",
            Self::Redirection(RedirectionStep::Apply { .. }) => "apply-rules",
            Self::Redirection(RedirectionStep::Release { .. }) => "release-rules",
            Self::Probes(ProbeStep::Exempt(_)) => "upsert-probes",
            Self::Probes(ProbeStep::Remove) => "remove-probes",
            Self::Status(_) => "write-status",
        }
    }

    /// Returns the network namespace that the step needs, if it needs one.
    pub(super) fn netns(&self) -> Option<&N> {
        match self {
            Self::Proxy(ProxyStep::Announce { netns, .. }) => Some(netns),
            Self::Redirection(
                RedirectionStep::Apply { netns, .. } | RedirectionStep::Release { netns },
            ) => Some(netns),
            Self::Proxy(ProxyStep::Withdraw) | Self::Probes(_) | Self::Status(_) => None,
        }
    }
}
