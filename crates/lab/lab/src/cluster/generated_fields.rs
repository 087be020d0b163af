//! Objects that the lab itself generates, and fields that it adds to objects of the manifests.

use std::net::IpAddr;

use ambit_k8s_api::{Kind, Object, ObjectKey, labels};
use serde_json::{Value, json};

use super::{
    ContainerObservation, ContainerState, NodeInfo, PodObservation, PodPlan,
    schedule::HOSTNAME_LABEL, waypoints::GatewayProblem,
};

/// Kinds of objects that determine to which workloads policies apply.
pub(super) const POLICY_SCOPE_KINDS: [Kind; 9] = [
    Kind::Namespace,
    Kind::Pod,
    Kind::Service,
    Kind::ServiceEntry,
    Kind::WorkloadEntry,
    Kind::GatewayClass,
    Kind::Gateway,
    Kind::AuthorizationPolicy,
    Kind::PeerAuthentication,
];

/// Returns the manifest of an object whose kind is in [`POLICY_SCOPE_KINDS`]; `None` for other kinds.
pub(super) fn policy_object(object: &Object) -> Option<Value> {
    let value = match object {
        Object::Namespace(object) => serde_json::to_value(&**object),
        Object::Pod(object) => serde_json::to_value(&**object),
        Object::Service(object) => serde_json::to_value(&**object),
        Object::ServiceEntry(object) => serde_json::to_value(&**object),
        Object::WorkloadEntry(object) => serde_json::to_value(&**object),
        Object::GatewayClass(object) => serde_json::to_value(&**object),
        Object::Gateway(object) => serde_json::to_value(&**object),
        Object::AuthorizationPolicy(object) => serde_json::to_value(&**object),
        Object::PeerAuthentication(object) => serde_json::to_value(&**object),
        _ => return None,
    };
    let mut value = value.ok()?;
    remove_nulls(&mut value);
    Some(value)
}

/// Removes null members from JSON, as manifests omit them.
fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(remove_nulls);
        }
        Value::Array(all) => all.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

pub(super) fn node_object(node: &NodeInfo) -> Value {
    let addresses: Vec<_> = node
        .ips
        .iter()
        .map(|ip| json!({"type": "InternalIP", "address": ip.to_string()}))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": node.name, "labels": {HOSTNAME_LABEL: node.name}},
        "status": {
            "addresses": addresses,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

pub(super) fn namespace_object(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
    })
}

/// Returns a service with its addresses: complete from the manifest `whole` if the lab generated it, else only the
/// fields to merge into the user's manifest.
pub(super) fn service_object(key: &ObjectKey, whole: Option<Value>, ips: &[IpAddr]) -> Value {
    let texts: Vec<_> = ips.iter().map(ToString::to_string).collect();
    let families: Vec<_> = ips
        .iter()
        .map(|ip| if ip.is_ipv4() { "IPv4" } else { "IPv6" })
        .collect();
    let own = || json!({"apiVersion": "v1", "kind": "Service", "metadata": object_metadata(key)});
    let mut value = whole.unwrap_or_else(own);
    json_patch::merge(
        &mut value,
        &json!({
            "spec": {"clusterIP": texts.first(), "clusterIPs": texts, "ipFamilies": families},
        }),
    );
    value
}

/// Returns the status of a waypoint's Gateway as the control plane writes it; `host` is the name of its service. The
/// addresses are in it once the waypoint `has_been_ready`.
pub(super) fn gateway_status(
    key: &ObjectKey,
    host: &str,
    ips: &[IpAddr],
    ready: bool,
    has_been_ready: bool,
) -> Value {
    let (status, reason, message) = match ready {
        true => ("True", "Programmed", "the waypoint is ready"),
        false => (
            "False",
            "AddressNotUsable",
            "no pod of the waypoint is ready",
        ),
    };
    let mut addresses: Vec<_> = ips
        .iter()
        .map(|ip| json!({"type": "IPAddress", "value": ip.to_string()}))
        .collect();
    addresses.push(json!({"type": "Hostname", "value": host}));
    if !has_been_ready {
        addresses.clear();
    }
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": object_metadata(key),
        "status": {
            "addresses": addresses,
            "conditions": [
                {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "a waypoint is made for it"},
                {"type": "Programmed", "status": status, "reason": reason, "message": message},
            ],
        },
    })
}

/// Returns the status of a Gateway for which no waypoint can be generated.
pub(super) fn rejected_gateway_status(key: &ObjectKey, problem: &GatewayProblem) -> Value {
    let none = condition("Programmed", "Invalid", "no waypoint is made for it");
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": object_metadata(key),
        "status": {"conditions": [not_accepted_condition(problem), none]},
    })
}

/// Returns the condition `Accepted: False` of an invalid Gateway.
pub(super) fn not_accepted_condition(problem: &GatewayProblem) -> Value {
    condition("Accepted", problem.reason, &problem.message)
}

/// Returns the condition of a Gateway that requests an autoscaler, which labs do not have.
pub(super) fn no_autoscaler_condition() -> Value {
    condition(
        "ambit.io/Autoscaled",
        "NotInLab",
        "a lab has no autoscalers: its waypoint has the least number of pods that the HorizontalPodAutoscaler allows",
    )
}

fn condition(name: &str, reason: &str, message: &str) -> Value {
    json!({"type": name, "status": "False", "reason": reason, "message": message})
}

/// Sets a status condition of an object, and replaces an existing condition of the same type.
pub(super) fn set_condition(object: &mut Value, condition: Value) {
    let conditions = object.pointer_mut("/status/conditions");
    if let Some(conditions) = conditions.and_then(Value::as_array_mut) {
        conditions.retain(|one| one.get("type") != condition.get("type"));
        conditions.push(condition);
    }
}

pub(super) fn pod_object(
    key: &ObjectKey,
    plan: &PodPlan,
    observed: &PodObservation,
    terminating: bool,
) -> Value {
    // The whole object for a Deployment's pods; else only the fields that the lab owns.
    let mut value = match plan.deployment.is_some() {
        true => serde_json::to_value(&*plan.pod).unwrap_or_default(),
        false => json!({"metadata": object_metadata(key)}),
    };
    json_patch::merge(
        &mut value,
        &json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"uid": plan.uid},
            "spec": {"nodeName": plan.node, "serviceAccountName": plan.service_account()},
            "status": pod_status(observed),
        }),
    );
    if terminating {
        // Only the field's presence matters, not its time.
        json_patch::merge(
            &mut value,
            &json!({"metadata": {"deletionTimestamp": "2000-01-01T00:00:00Z"}}),
        );
    }
    value
}

fn object_metadata(key: &ObjectKey) -> Value {
    json!({
        "name": key.name.as_str(),
        "namespace": key.namespace.as_str(),
        "annotations": {labels::OVERLAY: "true"},
    })
}

fn pod_status(observed: &PodObservation) -> Value {
    let ready = if observed.is_ready() { "True" } else { "False" };
    let mut status = json!({
        "phase": observed.phase.as_str(),
        "conditions": [
            {"type": "Ready", "status": ready},
            {"type": "ContainersReady", "status": ready},
        ],
        "containerStatuses": observed.containers.iter().map(container_status).collect::<Vec<_>>(),
    });
    if let Some(first) = observed.ips.first() {
        let ips: Vec<_> = observed
            .ips
            .iter()
            .map(|ip| json!({"ip": ip.to_string()}))
            .collect();
        json_patch::merge(
            &mut status,
            &json!({"podIP": first.to_string(), "podIPs": ips}),
        );
    }
    status
}

fn container_status(container: &ContainerObservation) -> Value {
    let state = match &container.state {
        ContainerState::Waiting(why) => json!({"waiting": {"reason": why}}),
        ContainerState::Running => json!({"running": {}}),
        ContainerState::Exited(code) => json!({"terminated": {"exitCode": code}}),
    };
    json!({
        "name": container.name, "image": "", "imageID": "",
        "ready": container.ready, "restartCount": container.restarts, "state": state,
    })
}
