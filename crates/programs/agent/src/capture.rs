//! Methods by which a pod may be captured: rules, or BPF programs.

use ambit_sys::netns::Netns;
use ambit_zds::PodUid;

/// Method by which a pod is captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaptureMethod {
    /// Rules, as the agent is set to.
    Rules,
    /// BPF programs instead of rules.
    Bpf,
    /// Rules, since BPF programs cannot capture the pod, for this reason.
    RulesInsteadOfBpf(String),
}

/// Pod whose redirection is changed.
#[derive(Clone, Debug)]
pub struct CaptureTarget {
    /// UID of the pod.
    pub uid: PodUid,
    /// Name of the pod's cgroup if it is not named by the UID.
    pub cgroup_alias: Option<String>,
    /// Network namespace of the pod.
    pub netns: Netns,
}

/// Readiness of a pod for BPF programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BpfReadiness {
    /// The agent is set to rules.
    NotRequested,
    /// Programs cannot capture the pod, for this reason.
    Impossible(String),
    /// The pod is prepared, and its proxy has been ordered to enter its listeners.
    Prepared {
        /// Whether the proxy has acknowledged the order.
        acknowledged: bool,
    },
}
