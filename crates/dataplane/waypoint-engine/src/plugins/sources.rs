//! Checks the addresses from which plugin modules are fetched. Plugins of a namespace may use addresses outside of the
//! mesh, of the namespace's own Services and pods, and of others that ReferenceGrants allow.

use std::{net::IpAddr, sync::Arc};

use ambit_fetch::Admission;
use ambit_model::{ArcStr, NetworkAddress, WaypointExtension};
use ambit_route::MeshTable;

use crate::{upstream::UpstreamError, upstream_lookup, waypoint::Waypoint};

/// Reason why a module may not be fetched from an address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    #[error(transparent)]
    UnknownOwner(#[from] UpstreamError),
    #[error(
        "{ip} is an address of {owner}: add a ReferenceGrant from WasmPlugin of {namespace} in its namespace"
    )]
    NotGranted {
        ip: IpAddr,
        owner: String,
        namespace: ArcStr,
    },
}

/// Namespace wildcard in a plugin's list of callees. The control plane sets it for plugins of the root namespace.
const ALL_NAMESPACES: &str = "*";

/// Whether a plugin belongs to the mesh's administrator, so that its module may be fetched from Services and pods of
/// all namespaces.
fn is_mesh_wide(plugin: &WaypointExtension) -> bool {
    let mut callees = plugin.callees.iter();
    callees.any(|callee| callee.namespace == ALL_NAMESPACES)
}

/// Egress check for fetching the module of one plugin.
#[derive(Clone, Debug)]
pub(super) struct ModuleEgress {
    waypoint: Arc<Waypoint>,
    plugin: WaypointExtension,
}

impl ModuleEgress {
    /// Returns the egress check for the module of a plugin; `None` if the plugin belongs to the mesh's administrator.
    pub(super) fn new(waypoint: &Arc<Waypoint>, plugin: &WaypointExtension) -> Option<Self> {
        (!is_mesh_wide(plugin)).then(|| Self {
            waypoint: waypoint.clone(),
            plugin: plugin.clone(),
        })
    }
}

impl Admission for ModuleEgress {
    type Error = SourceError;

    /// Checks that the module may be fetched from an address. Fails also if the control plane does not report which
    /// workload or service has the address.
    async fn admit(&self, _host: &str, ip: IpAddr) -> Result<(), SourceError> {
        let at = upstream_lookup::request_address_record(&self.waypoint, ip).await?;
        may_fetch_at(&self.waypoint.state.table(), &at, &self.plugin)
    }
}

fn may_fetch_at(
    table: &MeshTable,
    at: &NetworkAddress,
    plugin: &WaypointExtension,
) -> Result<(), SourceError> {
    let not_granted = |owner: String| SourceError::NotGranted {
        ip: at.address,
        owner,
        namespace: plugin.namespace.clone(),
    };
    let service = table.service_by_vip(&at.network, at.address, &plugin.namespace);
    // ServiceEntries name addresses outside of the mesh.
    let service = service.filter(|service| {
        let name = format!("{}.{}.svc.", service.name, service.namespace);
        service.hostname.starts_with(&name)
    });
    if let Some(service) = service {
        let name = service.namespaced_hostname();
        return match plugin.may_call(&name) {
            true => Ok(()),
            false => Err(not_granted(name.to_string())),
        };
    }
    let workload = table.workload_by_ip(&at.network, at.address);
    let Some(pod) = workload.filter(|workload| workload.is_pod()) else {
        return Ok(());
    };
    let is_granted = *pod.namespace() == plugin.namespace
        || pod.services().any(|service| plugin.may_call(service));
    match is_granted {
        true => Ok(()),
        false => Err(not_granted(format!(
            "pod {}/{}",
            pod.namespace(),
            pod.name()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use ambit_model::{NamespacedHostname, Service, Visibility, Workload};
    use ambit_route::TableConfig;

    use super::*;

    fn host(of: &str) -> NamespacedHostname {
        NamespacedHostname::new("store", format!("{of}.store.svc.cluster.local"))
    }

    fn table() -> MeshTable {
        let mut table = MeshTable::new(TableConfig::default());
        let service = |name: &str, hostname: &str, ip: &str| Service {
            name: name.into(),
            namespace: "store".into(),
            hostname: hostname.into(),
            vips: vec![NetworkAddress::new("", ip.parse::<IpAddr>().unwrap())],
            visibility: Visibility::Public,
            ..Service::default()
        };
        table.insert_service(service("web", &host("web").hostname, "10.96.0.9"));
        table.insert_service(service("cdn", "cdn.example.com", "192.0.2.7"));
        table.insert_workload(&Workload {
            uid: "c//Pod/store/web-1".into(),
            name: "web-1".into(),
            namespace: "store".into(),
            workload_ips: vec!["10.0.0.1".parse().unwrap()],
            services: [(host("web"), [(80, 8080)].into_iter().collect())].into(),
            ..Workload::default()
        });
        table
    }

    #[test]
    fn modules_come_from_other_namespaces_only_by_a_grant() {
        let table = table();
        let granted = |of: &str| vec![host(of)];
        for (namespace, callees, at, may) in [
            ("tenant", vec![], "10.96.0.9", false),
            ("tenant", vec![], "10.0.0.1", false),
            ("tenant", granted("other"), "10.96.0.9", false),
            ("tenant", granted("other"), "10.0.0.1", false),
            ("tenant", granted("web"), "10.96.0.9", true),
            ("tenant", granted("web"), "10.0.0.1", true),
            ("tenant", granted("*"), "10.0.0.1", true),
            ("store", vec![], "10.96.0.9", true),
            ("store", vec![], "10.0.0.1", true),
            ("tenant", vec![], "192.0.2.7", true),
            ("tenant", vec![], "192.0.2.8", true),
        ] {
            let plugin = WaypointExtension {
                namespace: namespace.into(),
                callees: callees.clone(),
                ..WaypointExtension::default()
            };
            let at = NetworkAddress::new("", at.parse::<IpAddr>().unwrap());
            let checked = may_fetch_at(&table, &at, &plugin);
            assert_eq!(
                checked.is_ok(),
                may,
                "{namespace} {callees:?} {at}: {checked:?}"
            );
        }
    }
}
