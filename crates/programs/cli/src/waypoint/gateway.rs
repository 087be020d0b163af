//! A waypoint's Gateway, to write and to show.

use ambit_k8s_api::labels::WAYPOINT_FOR;
use ambit_lab::PodStatus;
use ambit_waypoint_objects::CLASS;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Label with the revision of the control plane that manages a Gateway.
const REVISION: &str = "istio.io/rev";
/// Version of the API.
pub(super) const API_VERSION: &str = "gateway.networking.k8s.io/v1";

/// The manifest of a waypoint.
pub(super) fn manifest(
    namespace: &str,
    name: &str,
    serves: Option<&str>,
    revision: Option<&str>,
) -> Value {
    let mut labels = Map::new();
    for (label, value) in [(WAYPOINT_FOR, serves), (REVISION, revision)] {
        if let Some(value) = value {
            labels.insert(label.to_owned(), value.into());
        }
    }
    let mut metadata = json!({"name": name, "namespace": namespace});
    if let Some(metadata) = metadata.as_object_mut().filter(|_| !labels.is_empty()) {
        metadata.insert("labels".to_owned(), labels.into());
    }
    json!({
        "apiVersion": API_VERSION,
        "kind": "Gateway",
        "metadata": metadata,
        "spec": {
            "gatewayClassName": CLASS,
            "listeners": [{"name": "mesh", "port": 15008, "protocol": "HBONE"}],
        },
    })
}

/// A Gateway as observed.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Seen(Value);

impl Seen {
    pub(crate) fn new(gateway: Value) -> Self {
        Self(gateway)
    }

    fn text(&self, pointer: &str) -> &str {
        self.0
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    pub(crate) fn name(&self) -> &str {
        self.text("/metadata/name")
    }

    pub(crate) fn namespace(&self) -> &str {
        self.text("/metadata/namespace")
    }

    /// Whether a pod of a lab is one of its pods, whose service account has its name.
    pub(crate) fn has_pod(&self, pod: &PodStatus) -> bool {
        (pod.namespace.as_str(), pod.service_account.as_str()) == (self.namespace(), self.name())
    }

    /// Whether the Gateway is a waypoint of Ambit's control plane.
    pub(crate) fn is_waypoint(&self) -> bool {
        self.class() == CLASS
    }

    /// Whether another controller's Gateway declares itself a waypoint: labels may name any.
    pub(super) fn is_foreign_waypoint(&self) -> bool {
        let listeners = self.0.pointer("/spec/listeners").and_then(Value::as_array);
        let mut listeners = listeners.into_iter().flatten();
        let is_hbone = |one: &Value| {
            one.get("protocol").and_then(Value::as_str) == Some("HBONE")
                && one.get("port").and_then(Value::as_u64) == Some(15008)
        };
        let is_meant = !self.traffic_label().is_empty() || listeners.any(is_hbone);
        !self.is_waypoint() && is_meant
    }

    pub(super) fn class(&self) -> &str {
        self.text("/spec/gatewayClassName")
    }

    fn traffic_label(&self) -> &str {
        self.text("/metadata/labels/istio.io~1waypoint-for")
    }

    pub(super) fn revision(&self) -> &str {
        or_default(self.text("/metadata/labels/istio.io~1rev"))
    }

    pub(super) fn traffic_type(&self) -> &str {
        or_default(self.traffic_label())
    }

    /// Returns `True`, `False`, or `Unknown` if the condition is missing.
    pub(super) fn programmed(&self) -> &str {
        let mut all = self.conditions();
        let found = all.find(|[kind, ..]| *kind == "Programmed");
        found.map_or("Unknown", |[_, status, ..]| status)
    }

    /// Type, status, reason and message of each condition.
    pub(super) fn conditions(&self) -> impl Iterator<Item = [&str; 4]> {
        let all = self
            .0
            .pointer("/status/conditions")
            .and_then(Value::as_array);
        all.into_iter().flatten().map(|one| {
            ["type", "status", "reason", "message"]
                .map(|field| one.get(field).and_then(Value::as_str).unwrap_or_default())
        })
    }

    /// Whether the current generation of the Gateway is programmed.
    pub(crate) fn is_programmed(&self) -> bool {
        let number = |value: Option<&Value>| value.and_then(Value::as_i64);
        let wished = number(self.0.pointer("/metadata/generation"));
        let all = self
            .0
            .pointer("/status/conditions")
            .and_then(Value::as_array);
        all.into_iter().flatten().any(|one| {
            let is =
                |field: &str, value: &str| one.get(field).and_then(Value::as_str) == Some(value);
            let of = number(one.get("observedGeneration"));
            is("type", "Programmed") && is("status", "True") && of == wished
        })
    }
}

fn or_default(text: &str) -> &str {
    if text.is_empty() { "default" } else { text }
}
