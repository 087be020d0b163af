//! Steps that enrol and unenrol a pod: one enum for each kind of work, since each kind has an executor of its own
//! (`process/executor.rs`).

use std::net::IpAddr;

use ambit_model::PodName;
use ambit_netplan::{ProbePorts, RedirectionSpec};
use ambit_zds::WorkloadInfo;

use crate::source::Status;

/// Id that matches an outcome to its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepId(pub(super) u64);

/// One step for one pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Step<N> {
    /// Step of the node proxies.
    Proxy(ProxyStep<N>),
    /// Step in the pod's network namespace.
    Redirection(RedirectionStep<N>),
    /// Step in the node's set of probe exemptions.
    Probes(ProbeStep),
    /// Step on the pod's visible status.
    Status(WriteStatus),
}

/// Step of the node proxies for a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum ProxyStep<N> {
    /// Have the newest proxy serve the pod.
    Announce {
        /// Workload of the pod.
        info: WorkloadInfo,
        /// Network namespace of the pod.
        netns: N,
    },
    /// Have every proxy stop serving the pod.
    Withdraw,
}

/// Step of the redirection in a pod's network namespace.
#[derive(Clone, Debug, PartialEq)]
pub enum RedirectionStep<N> {
    /// Applies the redirection, or verifies it.
    Apply {
        /// Network namespace of the pod.
        netns: N,
        /// Redirection to install.
        spec: RedirectionSpec,
        /// The capture is late (see `enrolment/late_capture.rs`): if no redirection is in place yet, connections from
        /// before are closed.
        close_pre_capture: bool,
    },
    /// Removes redirection, if there is any; connections in the proxy continue.
    Release {
        /// Network namespace of the pod.
        netns: N,
    },
}

/// Exemption of kubelet's probes of a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum ProbeStep {
    /// Exempt exactly these addresses and ports.
    Exempt(ProbeTargets),
    /// Remove the pod's addresses.
    Remove,
}

/// Addresses and ports of a pod where kubelet's probes are exempt.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeTargets {
    /// The pod's addresses.
    pub addresses: Vec<IpAddr>,
    /// Ports that are exempt at each address.
    pub ports: ProbePorts,
}

/// Writes or removes the pod's status.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteStatus {
    /// The pod's name.
    pub pod: PodName,
    /// Annotation to write.
    pub status: Status,
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

    /// Returns the network namespace of the step.
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
