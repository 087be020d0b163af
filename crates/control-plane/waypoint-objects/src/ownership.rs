//! Labels and names that decide which Gateways this control plane manages, and which objects it has created.

use std::collections::BTreeMap;

use ambit_k8s_api::{Gateway, labels::REVISION, revisions::Revisions};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Label of an object: class of the Gateway that it belongs to.
pub(crate) const GATEWAY_CLASS_LABEL: &str = "gateway.networking.k8s.io/gateway-class-name";
/// Name of the GatewayClass of waypoints.
pub const GATEWAY_CLASS: &str = "istio-waypoint";
/// Controller name of the GatewayClass of waypoints.
pub const CONTROLLER_NAME: &str = "istio.io/mesh-controller";
/// Label of every generated object: its manager.
pub const MANAGED_LABEL: &str = "gateway.istio.io/managed";
/// Value of [`MANAGED_LABEL`] on a waypoint's objects.
pub const MANAGED_BY_VALUE: &str = "istio.io-mesh-controller";

/// Returns whether a Gateway of any class belongs to the control plane of `revisions` (its revision and tags).
/// `namespace` has the labels of the Gateway's namespace, which may select a revision, too.
pub fn is_managed_by_revision(
    gateway: &Gateway,
    namespace: &BTreeMap<String, String>,
    revisions: &Revisions,
) -> bool {
    let labels = gateway.metadata.labels.as_ref();
    let own = labels.and_then(|labels| labels.get(REVISION));
    let of_namespace = namespace.get(REVISION);
    revisions.is_own_revision(own.map(String::as_str), of_namespace.map(String::as_str))
}

/// Returns whether a Gateway's waypoint is deployed automatically: its class is [`GATEWAY_CLASS`], and it does not
/// request an address by host name, which means that its Service and pods are deployed manually.
pub fn is_deployed_automatically(gateway: &Gateway) -> bool {
    let by_hostname = gateway
        .spec
        .addresses
        .iter()
        .any(|address| address.type_.as_deref() == Some("Hostname"));
    gateway.spec.gateway_class_name == GATEWAY_CLASS && !by_hostname
}

/// Returns whether an object was created for a waypoint, by Ambit or by another controller of [`GATEWAY_CLASS`].
pub fn is_waypoint_object(metadata: &ObjectMeta) -> bool {
    let labels = metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get(MANAGED_LABEL))
        .map(String::as_str)
        == Some(MANAGED_BY_VALUE)
}

#[cfg(test)]
mod tests {
    use ambit_k8s_api::gateway::{GatewayAddress, GatewaySpec};

    use super::*;

    fn gateway(class: &str, revision: Option<&str>) -> Gateway {
        let labels = revision.map(|revision| BTreeMap::from([(REVISION.into(), revision.into())]));
        Gateway {
            metadata: ObjectMeta {
                labels,
                ..ObjectMeta::default()
            },
            spec: GatewaySpec {
                gateway_class_name: class.into(),
                ..GatewaySpec::default()
            },
            ..Gateway::default()
        }
    }

    #[test]
    fn own_revision_label_precedes_that_of_the_namespace() {
        let none = BTreeMap::new();
        let canary = BTreeMap::from([(REVISION.to_owned(), "canary".to_owned())]);
        for (own, namespace, revision, ours) in [
            (None, &none, "default", true),
            (None, &none, "canary", false),
            (Some("canary"), &none, "canary", true),
            (Some("canary"), &none, "default", false),
            (None, &canary, "canary", true),
            (None, &canary, "default", false),
            (Some("default"), &canary, "default", true),
        ] {
            let gateway = gateway(GATEWAY_CLASS, own);
            assert_eq!(
                is_managed_by_revision(&gateway, namespace, &Revisions::new(revision)),
                ours,
                "{own:?} {namespace:?} {revision}"
            );
        }
        assert!(is_deployed_automatically(&gateway(GATEWAY_CLASS, None)));
        assert!(!is_deployed_automatically(&gateway("istio", None)));
    }

    #[test]
    fn gateway_with_a_host_name_address_is_not_deployed() {
        let mut gateway = gateway(GATEWAY_CLASS, None);
        gateway.spec.addresses = vec![GatewayAddress {
            type_: Some("IPAddress".into()),
            value: "10.0.0.1".into(),
        }];
        assert!(is_deployed_automatically(&gateway));
        gateway.spec.addresses.push(GatewayAddress {
            type_: Some("Hostname".into()),
            value: "own.shop.svc.cluster.local".into(),
        });
        assert!(!is_deployed_automatically(&gateway));
    }
}
