//! Gateways of waypoints: builds their manifests, and reads their observed state.

use std::collections::BTreeMap;

use ambit_k8s_api::{
    Gateway, ObjectMeta,
    gateway::{GatewayStatus, Listener},
    labels::WAYPOINT_FOR,
};
use ambit_lab::PodStatus;
use ambit_waypoint_objects::GATEWAY_CLASS;
use serde::{Deserialize as _, Serialize, Serializer};
use serde_json::{Value, json};

use crate::{CliError, ErrorKind};

/// Label with the revision of the control plane that is responsible for a Gateway.
const REVISION_LABEL: &str = "istio.io/rev";
/// API version in which Gateways are read and written.
pub(super) const API_VERSION: &str = "gateway.networking.k8s.io/v1";

/// Builds the manifest of a waypoint's Gateway.
pub(super) fn manifest(
    namespace: &str,
    name: &str,
    serves: Option<&str>,
    revision: Option<&str>,
) -> Value {
    let labels = [(WAYPOINT_FOR, serves), (REVISION_LABEL, revision)].into_iter();
    let labels: BTreeMap<_, _> = labels
        .filter_map(|(label, value)| Some((label.to_owned(), value?.to_owned())))
        .collect();
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
        labels: (!labels.is_empty()).then_some(labels),
        ..ObjectMeta::default()
    };
    json!({
        "apiVersion": API_VERSION,
        "kind": "Gateway",
        "metadata": metadata,
        "spec": {
            "gatewayClassName": GATEWAY_CLASS,
            "listeners": [{"name": "mesh", "port": 15008, "protocol": "HBONE"}],
        },
    })
}

/// Gateway of a lab or cluster; JSON output has the complete object.
#[derive(Clone, Debug)]
pub(crate) struct GatewayObject {
    whole: Value,
    gateway: Gateway,
    status: GatewayStatus,
}

impl Serialize for GatewayObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.whole.serialize(serializer)
    }
}

impl GatewayObject {
    pub(crate) fn new(whole: Value) -> Self {
        // Objects of other kinds have no class, and so are no waypoints.
        let gateway = Gateway::deserialize(&whole).unwrap_or_default();
        Self {
            status: gateway.parse_status(),
            whole,
            gateway,
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.gateway.metadata.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn namespace(&self) -> &str {
        let namespace = self.gateway.metadata.namespace.as_deref();
        namespace.unwrap_or_default()
    }

    fn label(&self, label: &str) -> &str {
        let labels = self.gateway.metadata.labels.as_ref();
        let value = labels.and_then(|labels| labels.get(label));
        value.map_or("", String::as_str)
    }

    /// Whether a lab's pod is an instance of the waypoint: its service account has the Gateway's name.
    pub(crate) fn has_pod(&self, pod: &PodStatus) -> bool {
        (pod.namespace.as_str(), pod.service_account.as_str()) == (self.namespace(), self.name())
    }

    /// Whether the Gateway has the GatewayClass of Ambit's waypoints.
    pub(crate) fn is_waypoint(&self) -> bool {
        self.class() == GATEWAY_CLASS
    }

    /// Whether another controller's Gateway declares itself a waypoint, so that labels may name it.
    pub(super) fn is_foreign_waypoint(&self) -> bool {
        let is_hbone = |one: &Listener| one.protocol == "HBONE" && one.port == 15008;
        let mut listeners = self.gateway.spec.listeners.iter();
        let is_meant = !self.label(WAYPOINT_FOR).is_empty() || listeners.any(is_hbone);
        !self.is_waypoint() && is_meant
    }

    pub(super) fn class(&self) -> &str {
        &self.gateway.spec.gateway_class_name
    }

    pub(super) fn revision(&self) -> &str {
        or_default(self.label(REVISION_LABEL))
    }

    pub(super) fn traffic_type(&self) -> &str {
        or_default(self.label(WAYPOINT_FOR))
    }

    /// Returns the status of the condition `Programmed`: `True`, `False`, or `Unknown` if the Gateway does not have it.
    pub(super) fn programmed(&self) -> &str {
        let programmed = self.status.condition("Programmed");
        programmed.map_or("Unknown", |condition| &condition.status)
    }

    /// Returns type, status, reason and message of each status condition.
    pub(super) fn conditions(&self) -> impl Iterator<Item = [&str; 4]> {
        let all = self.status.conditions.iter();
        all.map(|one| [&*one.type_, &*one.status, &*one.reason, &*one.message])
    }

    /// Whether the condition `Programmed` is true for the Gateway's current generation.
    pub(crate) fn is_programmed(&self) -> bool {
        let programmed = self.status.condition("Programmed");
        programmed.is_some_and(|condition| {
            condition.status == "True"
                && condition.observed_generation == self.gateway.metadata.generation
        })
    }
}

fn or_default(text: &str) -> &str {
    if text.is_empty() { "default" } else { text }
}

/// Creates the error for a waypoint without a running pod.
pub(super) fn no_pod_error(gateway: &GatewayObject) -> CliError {
    let (namespace, name) = (gateway.namespace(), gateway.name());
    let what = format!("no pod of the waypoint {namespace}/{name} runs");
    CliError::new(ErrorKind::NotFound, what).with_hint(format!(
        "`ambit waypoint status {name} -n {namespace}` shows why"
    ))
}
