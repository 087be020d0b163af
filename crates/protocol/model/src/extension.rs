//! Wasm plugins of waypoints.

use std::{collections::BTreeMap, fmt};

use arcstr::ArcStr;
use serde::Serialize;

use crate::{NamespacedHostname, json};

/// WasmPlugin at a waypoint.
#[derive(Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaypointExtension {
    /// Namespace of the WasmPlugin.
    pub namespace: ArcStr,
    /// Name of the WasmPlugin.
    pub name: ArcStr,
    /// Whether the plugin applies to all traffic of the waypoint.
    pub for_gateway: bool,
    /// Services to which the plugin is attached.
    pub services: Vec<NamespacedHostname>,
    /// Phase of the filter chain in which the plugin runs.
    pub phase: ExtensionPhase,
    /// Priority within the phase; higher values run first.
    pub priority: i32,
    /// Creation time of the object; of equal priorities, older plugins run first.
    pub created: ArcStr,
    /// URL of the module: `oci://`, `http://`, `https://` or `file://`.
    pub url: ArcStr,
    /// SHA-256 digest of the module or of its image's manifest in hex; empty if unknown.
    pub sha256: ArcStr,
    /// Whether the module is fetched again even if it is cached.
    pub always_pull: bool,
    /// Registry credentials (`.dockerconfigjson`); empty without a pull secret.
    #[serde(serialize_with = "json::secret")]
    pub pull_secret: Vec<u8>,
    /// Whether requests bypass the plugin when it fails.
    pub fail_open: bool,
    /// Name of the plugin within the module (root ID), for modules with several plugins.
    pub plugin_name: ArcStr,
    /// Configuration that the module reads at start.
    #[serde(serialize_with = "json::secret")]
    pub configuration: ArcStr,
    /// Environment variables of the module.
    #[serde(serialize_with = "json::secret_map")]
    pub environment: BTreeMap<ArcStr, ArcStr>,
    /// Service ports whose requests the plugin handles; all ports if empty.
    pub ports: Vec<u16>,
    /// Services of other namespaces that the plugin may call, granted by ReferenceGrants. A hostname that begins with
    /// `*.` means all Services of its namespace.
    pub callees: Vec<NamespacedHostname>,
    /// Setting of the WasmPlugin that is unsupported, if any. The plugin does not run then, and requests are handled
    /// as if it had failed.
    pub unsupported: Option<ArcStr>,
}

/// Phase of the filter chain in which a plugin runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ExtensionPhase {
    /// Before JWT authentication.
    Authn,
    /// Before authorization policies.
    Authz,
    /// After authorization policies, before telemetry.
    Stats,
    /// Last in the filter chain, after the phase `Stats`; the default of WasmPlugins.
    #[default]
    Unspecified,
}

impl WaypointExtension {
    /// Returns the key of the WasmPlugin, `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Whether the plugin may call a service: one of its own namespace, or one that a ReferenceGrant allows.
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

    /// Returns the sort key of the order in which plugins run.
    pub fn sort_key(&self) -> impl Ord + '_ {
        (
            self.phase,
            std::cmp::Reverse(self.priority),
            &self.created,
            &self.namespace,
            &self.name,
        )
    }
}

/// Formats the plugin without its pull secret and environment.
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
