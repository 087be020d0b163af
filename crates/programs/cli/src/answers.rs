//! Responses of agents and of replicas of the control plane, with the fields that commands read. Unknown fields are
//! skipped, and fields that another version omits have defaults. The node proxies' dump is in [`crate::dump`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// An agent's `/v1/status`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AgentStatus {
    pub(crate) version: String,
    /// Pods that belong to the mesh.
    #[serde(rename = "wanted")]
    pub(crate) desired: Option<i64>,
    /// Number of them that are captured.
    pub(crate) captured: Option<i64>,
    /// Node proxies that are connected to the agent.
    pub(crate) proxies: Option<i64>,
    /// Reason why the agent's state of pods may be outdated.
    pub(crate) source_trouble: Option<String>,
    pub(crate) pods: Vec<AgentPod>,
}

/// An agent's `/v1/pods/NAMESPACE/NAME`, and an entry of its status. Printed whole.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AgentPod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Whether the pod belongs to the mesh.
    #[serde(rename = "wanted")]
    pub(crate) belongs: bool,
    /// `captured`, `failing`, `no-namespace`, `ended` and others.
    pub(crate) state: String,
    pub(crate) why: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Whether a node proxy has acknowledged that it listens.
    pub(crate) listeners: bool,
    /// Whether the agent found the redirection in the kernel.
    pub(crate) redirected: bool,
    /// Number of drifts: redirection changed by others and repaired.
    pub(crate) drifts: i64,
    /// Annotation that the pod should have.
    pub(crate) annotation: String,
    /// Last observed annotation.
    pub(crate) annotation_seen: String,
    #[serde(flatten)]
    pub(crate) more: Map<String, Value>,
}

/// A client in the control plane's `/debug/syncz`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct XdsClient {
    /// Pod of the client, `name.namespace`; older control planes have its node id here,
    /// `type~address~pod.namespace~domain`.
    pub(crate) proxy: String,
    /// Subscriptions by resource type.
    pub(crate) subscriptions: BTreeMap<String, Subscription>,
}

/// Subscription of a client.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Subscription {
    /// `SYNCED`, `STALE` or `ERROR`.
    pub(crate) state: String,
}

impl XdsClient {
    /// Returns the pod, `name.namespace`.
    pub(crate) fn pod(&self) -> &str {
        self.proxy.split('~').nth(2).unwrap_or(&self.proxy)
    }

    /// The worst state of its subscriptions.
    pub(crate) fn state(&self) -> &'static str {
        let worst = ["ERROR", "STALE", "SYNCED"].into_iter().find(|state| {
            let mut all = self.subscriptions.values();
            all.any(|subscription| subscription.state == *state)
        });
        worst.unwrap_or("no subscription")
    }
}
