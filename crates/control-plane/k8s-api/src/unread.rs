//! Kinds of other meshes without an effect in this one. For some kinds the existence of objects is read, in order to
//! report it; others are not read at all. [`replacement_for`] names the replacement for each.

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::status::Status;

/// Replacements for kinds without an effect, by API group and kind.
const REPLACEMENTS: &[(&str, &str, &str)] = &[
    (
        "networking.istio.io",
        "EnvoyFilter",
        "use RateLimit, WasmPlugin, Telemetry, DestinationRule, HTTPRoute or HTTPFault",
    ),
    (
        "networking.istio.io",
        "Gateway",
        "write a Gateway of gateway.networking.k8s.io for a controller of ingress gateways",
    ),
    (
        "networking.istio.io",
        "Sidecar",
        "delete it: node proxies need no list of hosts; to restrict callers, use AuthorizationPolicy",
    ),
    (
        "networking.istio.io",
        "ProxyConfig",
        "use spec.infrastructure.parametersRef of a waypoint's Gateway, and the chart's ztunnel values for node proxies",
    ),
    (
        "networking.istio.io",
        "WorkloadGroup",
        "write a WorkloadEntry for each workload",
    ),
    (
        "extensions.istio.io",
        "TrafficExtension",
        "use WasmPlugin with targetRefs; scripts in Lua must become plugins",
    ),
    (
        "gateway.networking.k8s.io",
        "ListenerSet",
        "it adds listeners to ingress gateways, which the controller of their class follows; a waypoint has one listener",
    ),
    (
        "gateway.networking.x-k8s.io",
        "XListenerSet",
        "it adds listeners to ingress gateways, which the controller of their class follows; a waypoint has one listener",
    ),
    (
        "gateway.networking.x-k8s.io",
        "XBackendTrafficPolicy",
        "use trafficPolicy.retryBudget of a DestinationRule, and sessionPersistence of a route's rules",
    ),
    (
        "gateway.networking.k8s.io",
        "UDPRoute",
        "UDP is not captured: delete it",
    ),
];

/// Returns the replacement for objects of a kind without an effect, if one is known.
pub fn replacement_for(group: &str, kind: &str) -> Option<&'static str> {
    let mut all = REPLACEMENTS.iter();
    all.find(|(of_group, of_kind, _)| (*of_group, *of_kind) == (group, kind))
        .map(|(_, _, instead)| *instead)
}

/// Returns whether an API group has kinds that the mesh reads, or kinds of other meshes, whose authors expect an
/// effect.
pub fn is_mesh_group(group: &str) -> bool {
    let gateway_api = ["gateway.networking.k8s.io", "gateway.networking.x-k8s.io"];
    group.ends_with(".istio.io") || gateway_api.contains(&group) || group == crate::ambit::GROUP
}

macro_rules! unread {
    ($($(#[$doc:meta])* $name:ident, $group:literal, $plural:literal;)*) => {
        $($(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            /// API version of the object.
            #[serde(default)]
            pub api_version: String,
            /// Kind of the object.
            #[serde(default)]
            pub kind: String,
            /// Metadata of the object.
            #[serde(default)]
            pub metadata: ObjectMeta,
        }

        impl k8s_openapi::Resource for $name {
            const API_VERSION: &'static str = concat!($group, "/v1");
            const GROUP: &'static str = $group;
            const KIND: &'static str = stringify!($name);
            const VERSION: &'static str = "v1";
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = NamespaceResourceScope;
        }

        impl k8s_openapi::Metadata for $name {
            type Ty = ObjectMeta;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }

        impl Status for $name {
            fn api_version(&self) -> &str {
                &self.api_version
            }

            fn conditions(&self) -> Vec<Value> {
                Vec::new()
            }
        })*
    };
}

unread! {
    /// Patches of Envoy's configuration, which have no effect.
    EnvoyFilter, "networking.istio.io", "envoyfilters";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Definition, Kind};

    #[test]
    fn kinds_without_an_effect_have_a_replacement() {
        for kind in Kind::ALL {
            let is_unread = kind.definition() == Definition::PresenceOnly;
            let instead = replacement_for(kind.group(), kind.as_str());
            assert_eq!(instead.is_some(), is_unread, "{kind}");
        }
        assert!(
            REPLACEMENTS
                .iter()
                .all(|(group, _, _)| is_mesh_group(group))
        );
        assert!(!is_mesh_group("apps") && !is_mesh_group(""));
    }
}
