//! Which Gateways are ours to run, and which objects were made by us.

use std::collections::BTreeMap;

use ambit_k8s_api::{Gateway, labels::REVISION, revisions::Revisions};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Label: the class of the Gateway that an object is for.
pub(crate) const GATEWAY_CLASS_NAME: &str = "gateway.networking.k8s.io/gateway-class-name";
/// The class of waypoints.
pub const CLASS: &str = "istio-waypoint";
/// The controller of that class.
pub const CONTROLLER: &str = "istio.io/mesh-controller";
/// Label of every generated object: its manager.
pub const MANAGED: &str = "gateway.istio.io/managed";
/// Value of [`MANAGED`] on a waypoint's objects.
pub const MANAGED_BY: &str = "istio.io-mesh-controller";

/// Whether a control plane takes care of a Gateway, of whatever class. Namespaces choose a revision, too: `namespace` are
/// the labels of the Gateway's own.
pub fn is_of_revision(
    gateway: &Gateway,
    namespace: &BTreeMap<String, String>,
    revisions: &Revisions,
) -> bool {
    let labels = gateway.metadata.labels.as_ref();
    let own = labels.and_then(|labels| labels.get(REVISION));
    let of_namespace = namespace.get(REVISION);
    revisions.is_own(own.map(String::as_str), of_namespace.map(String::as_str))
}

/// Whether a Gateway's waypoint is to be made: its class is that of waypoints, and it does not request an address by host
/// name, by which it would bring its own Service and its pods.
pub fn is_deployed(gateway: &Gateway) -> bool {
    let by_hostname = gateway
        .spec
        .addresses
        .iter()
        .any(|address| address.type_.as_deref() == Some("Hostname"));
    gateway.spec.gateway_class_name == CLASS && !by_hostname
}

/// Whether an object was made for a waypoint, by us or by another implementation of the same controller.
pub fn is_managed(metadata: &ObjectMeta) -> bool {
    let labels = metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get(MANAGED))
        .map(String::as_str)
        == Some(MANAGED_BY)
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
    fn revision_decides_and_a_gateway_goes_before_its_namespace() {
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
            let gateway = gateway(CLASS, own);
            assert_eq!(
                is_of_revision(&gateway, namespace, &Revisions::new(revision)),
                ours,
                "{own:?} {namespace:?} {revision}"
            );
        }
        assert!(is_deployed(&gateway(CLASS, None)));
        assert!(!is_deployed(&gateway("istio", None)));
    }

    #[test]
    fn an_address_by_host_name_means_that_the_waypoint_is_brought_along() {
        let mut gateway = gateway(CLASS, None);
        gateway.spec.addresses = vec![GatewayAddress {
            type_: Some("IPAddress".into()),
            value: "10.0.0.1".into(),
        }];
        assert!(is_deployed(&gateway));
        gateway.spec.addresses.push(GatewayAddress {
            type_: Some("Hostname".into()),
            value: "own.shop.svc.cluster.local".into(),
        });
        assert!(!is_deployed(&gateway));
    }
}
