//! Services of the mesh with the names of their ports, for tools that query Istio's service registry
//! (`/debug/registryz`). Published records lack port names, so this is computed from the objects on request.

use std::net::IpAddr;

use ambit_k8s_api::{Service, ServiceEntry, istio::Resolution};
use ambit_model::{AppProtocol, ArcStr, Visibility};

use crate::{
    labels::Labels,
    objects::{service::ServiceInput, service_entry::ServiceEntryInput},
    view::MeshView,
};

/// Service of the mesh, under one of its host names.
#[derive(Clone, Debug, PartialEq)]
pub struct RegisteredService {
    /// Host name that clients call.
    pub hostname: ArcStr,
    /// Name of the Service or ServiceEntry.
    pub name: ArcStr,
    /// Namespace of the Service or ServiceEntry.
    pub namespace: ArcStr,
    /// Whether the service is a Kubernetes Service rather than a host of a ServiceEntry.
    pub is_kubernetes: bool,
    /// Whether the service is visible in all namespaces rather than only in its own.
    pub is_public: bool,
    /// Virtual addresses of the service.
    pub addresses: Vec<IpAddr>,
    /// Ports, in the order of the object.
    pub ports: Vec<RegisteredPort>,
    /// Label selector of the service's pods.
    pub selector: Option<Labels>,
    /// How proxies find the service's endpoints.
    pub resolution: Resolution,
    /// Whether the service is outside the mesh (`MESH_EXTERNAL`).
    pub is_external: bool,
    /// Creation time of the object, see [`ambit_k8s_api::created`].
    pub created: String,
}

/// Port of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredPort {
    /// Name of the port; may be empty.
    pub name: String,
    /// Number of the service port.
    pub number: u16,
    /// Whether the port's transport protocol is TCP.
    pub is_tcp: bool,
    /// Application protocol that the port declares.
    pub app_protocol: AppProtocol,
}

impl MeshView {
    /// Returns all services that are visible in any namespace, ordered by host name and namespace.
    pub fn registry(&self) -> Vec<RegisteredService> {
        let mut all = Vec::new();
        for (_, objects) in self.all_objects() {
            let services = objects.all_of_kind::<Service>().values();
            all.extend(services.map(|service| self.registered_service(service)));
            let entries = objects.all_of_kind::<ServiceEntry>().values();
            all.extend(entries.flat_map(|entry| self.registered_hosts(entry)));
        }
        all.sort_by(|a, b| (&a.hostname, &a.namespace).cmp(&(&b.hostname, &b.namespace)));
        all
    }

    fn registered_service(&self, service: &ServiceInput) -> RegisteredService {
        let ports = service.ports.iter().map(|port| RegisteredPort {
            name: port.name.clone(),
            number: port.port,
            is_tcp: port.is_tcp,
            app_protocol: port.app_protocol,
        });
        RegisteredService {
            hostname: service.hostname(&self.config.cluster_domain),
            name: service.name.clone(),
            namespace: service.namespace.clone(),
            is_kubernetes: true,
            is_public: true,
            addresses: service.vips.clone(),
            ports: ports.collect(),
            selector: service.selector.clone(),
            resolution: if service.vips.is_empty() {
                Resolution::None
            } else {
                Resolution::Static
            },
            is_external: false,
            created: service.created.clone(),
        }
    }

    fn registered_hosts<'a>(
        &'a self,
        entry: &'a ServiceEntryInput,
    ) -> impl Iterator<Item = RegisteredService> + 'a {
        let registered = move |host: &ArcStr| {
            let visibility = self.visibility(entry, host)?;
            let addresses = entry.addresses_of(host);
            let single = addresses.filter(|net| net.prefix_len() == net.max_prefix_len());
            let ports = entry.declared_ports();
            let ports = ports.map(|(name, number, app_protocol)| RegisteredPort {
                name: name.to_owned(),
                number,
                is_tcp: true,
                app_protocol,
            });
            Some(RegisteredService {
                hostname: host.clone(),
                name: entry.name.clone(),
                namespace: entry.namespace.clone(),
                is_kubernetes: false,
                is_public: visibility == Visibility::Public,
                addresses: single.map(|net| net.addr()).collect(),
                ports: ports.collect(),
                selector: entry.selector.clone(),
                resolution: entry.resolution,
                is_external: entry.is_external,
                created: entry.created.clone(),
            })
        };
        entry.hosts.iter().filter_map(registered)
    }
}
