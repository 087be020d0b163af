//! Responses of agents and of replicas of the control plane, limited to the fields that commands read. Unknown fields
//! are skipped, and fields that another version omits have defaults. The node proxies' `/config_dump` is in
//! [`crate::dump`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// An agent's `/v1/status`: numbers of pods and node proxies on its node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AgentStatus {
    pub(crate) version: String,
    /// Number of pods on the agent's node that belong to the mesh.
    #[serde(rename = "wanted")]
    pub(crate) desired: Option<i64>,
    /// Number of the node's mesh pods whose traffic is captured.
    pub(crate) captured: Option<i64>,
    /// Number of node proxies that are connected to the agent.
    pub(crate) proxies: Option<i64>,
    /// Reason why the agent's knowledge of pods and namespaces may be outdated; `None` if it is current.
    pub(crate) source_trouble: Option<String>,
    pub(crate) pods: Vec<AgentPod>,
}

/// State of one pod: an agent's `/v1/pods/NAMESPACE/NAME`, or an entry of its `/v1/status`. Unknown fields are kept in
/// `more`, so that JSON output has them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AgentPod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Whether the pod belongs to the mesh.
    #[serde(rename = "wanted")]
    pub(crate) belongs: bool,
    /// State of the pod as the agent sees it: `captured`, `failing`, `no-namespace`, `ended` and others.
    pub(crate) state: String,
    pub(crate) why: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Whether a node proxy has acknowledged that it listens in the pod's network namespace.
    pub(crate) listeners: bool,
    /// Whether the agent found the pod's redirection rules in the kernel.
    pub(crate) redirected: bool,
    /// Number of times that another program changed the pod's redirection rules and the agent repaired them.
    pub(crate) drifts: i64,
    /// Method by which the pod is captured: `bpf` or `rules`; empty in older agents and while it is not known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) captured_by: String,
    /// Reason why rules capture the pod although the agent is set to BPF programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) not_by_bpf: Option<String>,
    /// Status annotation that the pod should have.
    pub(crate) annotation: String,
    /// Status annotation that the agent last observed on the pod.
    pub(crate) annotation_seen: String,
    #[serde(flatten)]
    pub(crate) more: Map<String, Value>,
}

/// An xDS client in the control plane's `/debug/syncz`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct XdsClient {
    /// Pod of the client, `name.namespace`; older control planes have its node id here,
    /// `type~address~pod.namespace~domain`.
    pub(crate) proxy: String,
    /// State of the client's subscriptions, by resource type.
    pub(crate) subscriptions: BTreeMap<String, Subscription>,
}

/// Subscription of an xDS client to one resource type.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Subscription {
    /// State of the subscription: `SYNCED`, `STALE` or `ERROR`.
    pub(crate) state: String,
}

impl XdsClient {
    /// Returns the client's pod, `name.namespace`.
    pub(crate) fn pod(&self) -> &str {
        self.proxy.split('~').nth(2).unwrap_or(&self.proxy)
    }

    /// Returns the worst state among the client's subscriptions.
    pub(crate) fn state(&self) -> &'static str {
        let worst = ["ERROR", "STALE", "SYNCED"].into_iter().find(|state| {
            let mut all = self.subscriptions.values();
            all.any(|subscription| subscription.state == *state)
        });
        worst.unwrap_or("no subscription")
    }
}
