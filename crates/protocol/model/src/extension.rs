//! Plugins that run in a waypoint.

use std::{collections::BTreeMap, fmt};

use arcstr::ArcStr;
use serde::Serialize;

use crate::{NamespacedHostname, json};

/// Plugin of a waypoint.
#[derive(Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaypointExtension {
    /// Namespace of the WasmPlugin.
    pub namespace: ArcStr,
    /// Name of the WasmPlugin.
    pub name: ArcStr,
    /// For all that goes through the waypoint.
    pub for_gateway: bool,
    /// For requests to these.
    pub services: Vec<NamespacedHostname>,
    /// When in a request's way it is called.
    pub phase: ExtensionPhase,
    /// Of one phase, higher ones first.
    pub priority: i32,
    /// When the object was made: of one priority, older ones first.
    pub created: ArcStr,
    /// `oci://`, `http://`, `https://` or `file://`.
    pub url: ArcStr,
    /// Of the module or of its image's manifest, in hex; empty if it is not known.
    pub sha256: ArcStr,
    /// Whether it is fetched anew though it is at hand.
    pub always_pull: bool,
    /// The registry credentials (`.dockerconfigjson`); empty if there are none.
    #[serde(serialize_with = "json::secret")]
    pub pull_secret: Vec<u8>,
    /// Requests pass without it where it fails.
    pub fail_open: bool,
    /// Which of the module's plugins.
    pub plugin_name: ArcStr,
    /// Configuration that the module reads at its start.
    #[serde(serialize_with = "json::secret")]
    pub configuration: ArcStr,
    /// The environment of the module.
    #[serde(serialize_with = "json::secret_map")]
    pub environment: BTreeMap<ArcStr, ArcStr>,
    /// Only for requests to these ports; for all if empty.
    pub ports: Vec<u16>,
    /// Services of other namespaces that it may call, because ReferenceGrants there allow it. A hostname that begins
    /// with `*.` means all Services of its namespace.
    pub callees: Vec<NamespacedHostname>,
    /// Setting that is not supported: the plugin is not run, and requests are decided as if it had failed.
    pub unsupported: Option<ArcStr>,
}

/// When in a request's way a plugin is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ExtensionPhase {
    /// Before tokens are looked at.
    Authn,
    /// Before policies are evaluated.
    Authz,
    /// After policies, before statistics.
    Stats,
    /// Last in the chain.
    #[default]
    Unspecified,
}

impl WaypointExtension {
    /// Key of the object, `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Whether it may call a service: one of its own namespace, or one that a ReferenceGrant allows.
    pub fn may_call(&self, service: &NamespacedHostname) -> bool {
        let is_granted = |callee: &NamespacedHostname| {
            callee.namespace == service.namespace
                && match callee.hostname.strip_prefix('*') {
                    Some(end) => service
                        .hostname
                        .strip_suffix(end)
                        .is_some_and(|name| !name.is_empty() && !name.contains('.')),
                    None => callee.hostname == service.hostname,
                }
        };
        service.namespace == self.namespace || self.callees.iter().any(is_granted)
    }

    /// Plugins are called in this order.
    pub fn order(&self) -> impl Ord + '_ {
        (
            self.phase,
            std::cmp::Reverse(self.priority),
            &self.created,
            &self.namespace,
            &self.name,
        )
    }
}

/// Without the credentials.
impl fmt::Debug for WaypointExtension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaypointExtension")
            .field("key", &self.key())
            .field("for_gateway", &self.for_gateway)
            .field("services", &self.services)
            .field("phase", &self.phase)
            .field("priority", &self.priority)
            .field("url", &self.url)
            .field("sha256", &self.sha256)
            .field("has_pull_secret", &!self.pull_secret.is_empty())
            .field("fail_open", &self.fail_open)
            .field("configuration", &self.configuration)
            .field("ports", &self.ports)
            .field("unsupported", &self.unsupported)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_call_services_of_their_namespace_and_granted_ones() {
        let name = NamespacedHostname::new;
        let plugin = WaypointExtension {
            namespace: "shop".into(),
            callees: vec![
                name("bank", "api.bank.svc.cluster.local"),
                name("open", "*.open.svc.cluster.local"),
            ],
            ..WaypointExtension::default()
        };
        for (namespace, host, may_call) in [
            ("shop", "many.shop.svc.cluster.local", true),
            ("shop", "api.example", true),
            ("bank", "api.bank.svc.cluster.local", true),
            ("bank", "vault.bank.svc.cluster.local", false),
            ("bank", "*.bank.svc.cluster.local", false),
            ("open", "any.open.svc.cluster.local", true),
            // A grant for Services is none for a ServiceEntry's hosts.
            ("open", "api.example", false),
            ("open", "a.b.open.svc.cluster.local", false),
            ("open", ".open.svc.cluster.local", false),
            // The namespace is the record's, and not the name's.
            ("other", "any.open.svc.cluster.local", false),
            ("other", "api.bank.svc.cluster.local", false),
        ] {
            assert_eq!(
                plugin.may_call(&name(namespace, host)),
                may_call,
                "{namespace}/{host}"
            );
        }
    }
}
