//! Waypoint for a pod's own address: labels and Gateways in the order in which the control plane evaluates them, with
//! the reason.

use std::collections::BTreeMap;

use ambit_k8s_api::{
    Gateway, Namespace, Pod, created,
    labels::{FOR_SERVICE_ACCOUNT, USE_WAYPOINT, USE_WAYPOINT_NAMESPACE, WAYPOINT_FOR},
};
use ambit_waypoint_objects::GATEWAY_CLASS;
use serde::Serialize;

/// Waypoint to which labels or Gateways bind a pod's own address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WaypointBinding {
    /// Name of the waypoint, `namespace/name`; `None` if the pod is called directly.
    pub(super) waypoint: Option<String>,
    /// Reason of the binding in words.
    pub(super) why: String,
}

type StringMap = Option<BTreeMap<String, String>>;

fn label_value<'a>(map: &'a StringMap, name: &str) -> Option<&'a str> {
    map.as_ref()?.get(name).map(String::as_str)
}

/// Determines the waypoint for a pod's own address; `gateways` are all Gateways of the cluster.
pub(super) fn find_binding(
    pod: &Pod,
    namespace: &Namespace,
    gateways: &[Gateway],
) -> WaypointBinding {
    let of = namespace.metadata.name.as_deref().unwrap_or_default();
    let by_label = |labels: &StringMap, whose: &str| {
        let name = label_value(labels, USE_WAYPOINT)?;
        let place = label_value(labels, USE_WAYPOINT_NAMESPACE).unwrap_or(of);
        Some(binding_by_label(name, place, whose, gateways))
    };
    by_label(&pod.metadata.labels, "its own")
        .or_else(|| by_label(&namespace.metadata.labels, "its namespace's"))
        .unwrap_or_else(|| binding_by_gateway(pod, of, gateways))
}

fn no_binding(why: String) -> WaypointBinding {
    WaypointBinding {
        waypoint: None,
        why,
    }
}

fn binding_by_label(
    name: &str,
    namespace: &str,
    owner: &str,
    gateways: &[Gateway],
) -> WaypointBinding {
    let label = format!("{owner} label {USE_WAYPOINT}={name}");
    if name == "none" {
        return no_binding(label);
    }
    let found = gateways.iter().find(|gateway| {
        let metadata = &gateway.metadata;
        metadata.name.as_deref() == Some(name) && metadata.namespace.as_deref() == Some(namespace)
    });
    match found
        .map(|gateway| label_value(&gateway.metadata.labels, WAYPOINT_FOR).unwrap_or("service"))
    {
        Some(serves @ ("service" | "none")) => no_binding(format!(
            "{label} names a waypoint for {serves}: requests to the pod itself go directly"
        )),
        Some(_) => WaypointBinding {
            waypoint: Some(format!("{namespace}/{name}")),
            why: label
                + &foreign_gateway_reason(found).unwrap_or_else(|| unready_gateway_reason(found)),
        },
        None => WaypointBinding {
            waypoint: Some(format!("{namespace}/{name}")),
            why: format!("{label}; there is no such Gateway: connections are refused"),
        },
    }
}

/// Binds a pod without labels: to the Gateway for its service account, or else to the one for its namespace; of
/// several, to the oldest.
fn binding_by_gateway(pod: &Pod, namespace: &str, gateways: &[Gateway]) -> WaypointBinding {
    let spec = pod.spec.as_ref();
    let account = spec.and_then(|spec| spec.service_account_name.as_deref());
    let account = account.unwrap_or("default");
    let mut here: Vec<_> = gateways
        .iter()
        .filter(|gateway| {
            gateway.metadata.namespace.as_deref() == Some(namespace)
                && gateway.spec.gateway_class_name == GATEWAY_CLASS
        })
        .collect();
    here.sort_by_key(|gateway| (created(&gateway.metadata), gateway.metadata.name.clone()));
    let first = |expected: Option<&str>| {
        let of = |gateway: &&&Gateway| {
            let account = label_value(&gateway.metadata.annotations, FOR_SERVICE_ACCOUNT);
            account.filter(|account| !account.is_empty()) == expected
        };
        here.iter().find(of).copied()
    };
    let found = first(Some(account))
        .map(|gateway| {
            (
                gateway,
                format!("its Gateway is for the service account {account}"),
            )
        })
        .or_else(|| {
            first(None)
                .map(|gateway| (gateway, "its Gateway is for the whole namespace".to_owned()))
        });
    let Some((gateway, why)) = found else {
        return no_binding("no label and no Gateway binds it".to_owned());
    };
    let name = gateway.metadata.name.as_deref().unwrap_or_default();
    match label_value(&gateway.metadata.labels, WAYPOINT_FOR) {
        Some(serves @ ("service" | "none")) => no_binding(format!(
            "the Gateway {namespace}/{name} is for {serves}: requests to the pod itself go directly"
        )),
        _ => WaypointBinding {
            waypoint: Some(format!("{namespace}/{name}")),
            why: why + &unready_gateway_reason(Some(gateway)),
        },
    }
}

/// Describes the controller and the addresses of another controller's waypoint, as the end of a sentence; `None` for
/// Ambit's own.
fn foreign_gateway_reason(gateway: Option<&Gateway>) -> Option<String> {
    let gateway = gateway.filter(|gateway| gateway.spec.gateway_class_name != GATEWAY_CLASS)?;
    let class = &gateway.spec.gateway_class_name;
    let addresses = gateway.parse_status().addresses.into_iter();
    let at: Vec<_> = addresses.map(|address| address.value).collect();
    Some(match at.as_slice() {
        [] => format!(
            "; the Gateway is another controller's (class {class}), which has given it no address: connections are refused"
        ),
        at => format!(
            "; the Gateway is another controller's (class {class}), at {}: what comes another way than through it is \
             refused",
            at.join(", ")
        ),
    })
}

/// Describes, from its Gateway, why connections to a waypoint are refused or bypass it, as the end of a sentence; empty
/// if it is programmed.
fn unready_gateway_reason(gateway: Option<&Gateway>) -> String {
    let status = gateway.map(Gateway::parse_status).unwrap_or_default();
    let introduced = status.condition("ambit.io/Introduced");
    if introduced.is_some_and(|one| one.reason == "Waiting") {
        return "; it has never been ready: until it is, connections go where they went before"
            .to_owned();
    }
    match status.condition("Programmed") {
        Some(one) if one.status == "False" => format!(
            "; it is NOT ready ({}: {}), connections are refused",
            one.reason, one.message
        ),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn gateway(name: &str, created: &str, metadata: Value) -> Gateway {
        let mut value = json!({
            "metadata": {"name": name, "namespace": "shop", "creationTimestamp": created},
            "spec": {"gatewayClassName": GATEWAY_CLASS},
        });
        let into = value["metadata"].as_object_mut().unwrap();
        into.extend(metadata.as_object().unwrap().clone());
        serde_json::from_value(value).unwrap()
    }

    fn of(own: Value, of_namespace: Value, gateways: &[Gateway]) -> Option<String> {
        let pod = json!({"metadata": {"labels": own}, "spec": {"serviceAccountName": "web", "containers": []}});
        let namespace = json!({"metadata": {"name": "shop", "labels": of_namespace}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let namespace: Namespace = serde_json::from_value(namespace).unwrap();
        find_binding(&pod, &namespace, gateways).waypoint
    }

    #[test]
    fn labels_go_before_gateways_and_the_account_before_the_namespace() {
        let account = json!({"annotations": {FOR_SERVICE_ACCOUNT: "web"}});
        let all =
            json!({"labels": {WAYPOINT_FOR: "all"}, "annotations": {FOR_SERVICE_ACCOUNT: "x"}});
        let gateways = [
            gateway("young", "2026-02-01T00:00:00Z", json!({})),
            gateway("old", "2026-01-01T00:00:00Z", json!({})),
            gateway("own", "2026-03-01T00:00:00Z", account),
            gateway("all", "2026-03-01T00:00:00Z", all),
        ];
        let uses = |name: &str| json!({USE_WAYPOINT: name});
        let none = || json!({});
        let shop = |name: &str| Some(format!("shop/{name}"));
        assert_eq!(of(none(), none(), &gateways), shop("own"));
        assert_eq!(of(none(), none(), &gateways[..2]), shop("old"));
        assert_eq!(of(none(), none(), &[]), None);
        assert_eq!(of(none(), uses("all"), &gateways), shop("all"));
        assert_eq!(of(uses("none"), uses("all"), &gateways), None);
        // For services alone, which is what labels mean without more.
        assert_eq!(of(uses("old"), none(), &gateways), None);
        // What is not there is no way around it.
        assert_eq!(of(uses("gone"), none(), &gateways), shop("gone"));
    }

    #[test]
    fn status_names_waypoints_that_are_not_ready() {
        let mut all = gateway(
            "way",
            "2026-01-01T00:00:00Z",
            json!({"labels": {WAYPOINT_FOR: "all"}}),
        );
        let pod: Pod = serde_json::from_value(json!({"metadata": {}})).unwrap();
        for labels in [json!({}), json!({USE_WAYPOINT: "way"})] {
            let namespace = json!({"metadata": {"name": "shop", "labels": labels}});
            let namespace: Namespace = serde_json::from_value(namespace).unwrap();
            let mut why = |status: &str| {
                let condition = json!({"type": "Programmed", "status": status, "reason": "AddressNotUsable",
                    "message": "the waypoint is not ready"});
                all.status = json!({"conditions": [condition]});
                find_binding(&pod, &namespace, std::slice::from_ref(&all)).why
            };
            assert!(!why("True").contains("ready"));
            let unready = "; it is NOT ready (AddressNotUsable: the waypoint is not ready), connections are refused";
            assert!(why("False").ends_with(unready), "{}", why("False"));
            all.status = json!({"conditions": [{"type": "ambit.io/Introduced", "status": "False", "reason": "Waiting"}]});
            let waiting = find_binding(&pod, &namespace, std::slice::from_ref(&all)).why;
            assert!(waiting.ends_with("until it is, connections go where they went before"));
        }
    }

    #[test]
    fn status_names_waypoints_of_other_controllers() {
        let mut other = gateway(
            "way",
            "2026-01-01T00:00:00Z",
            json!({"labels": {WAYPOINT_FOR: "all"}}),
        );
        other.spec.gateway_class_name = "other".to_owned();
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"labels": {USE_WAYPOINT: "way"}}})).unwrap();
        let namespace: Namespace =
            serde_json::from_value(json!({"metadata": {"name": "shop"}})).unwrap();
        let state_text = |gateway: &Gateway| {
            let binding = find_binding(&pod, &namespace, std::slice::from_ref(gateway));
            assert_eq!(binding.waypoint.as_deref(), Some("shop/way"));
            binding.why
        };
        let nowhere = state_text(&other);
        assert!(
            nowhere
                .ends_with("(class other), which has given it no address: connections are refused")
        );
        other.status = json!({"addresses": [{"value": "10.0.0.1"}]});
        assert!(
            state_text(&other).contains("(class other), at 10.0.0.1:"),
            "{}",
            state_text(&other)
        );
        // Without a label it takes nothing.
        assert_eq!(of(json!({}), json!({}), &[other]), None);
    }

    #[test]
    fn a_gateway_for_services_leaves_pods_alone() {
        let services = json!({"labels": {WAYPOINT_FOR: "service"}});
        let gateways = [gateway("way", "2026-01-01T00:00:00Z", services)];
        assert_eq!(of(json!({}), json!({}), &gateways), None);
    }
}
