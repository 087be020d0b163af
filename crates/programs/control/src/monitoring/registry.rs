//! Page `/debug/registryz`: services of the mesh in the JSON format of Istio's registry, with which
//! Kiali validates hosts.

use std::collections::BTreeMap;

use ambit_derive::{RegisteredPort, RegisteredService};
use ambit_k8s_api::istio::Resolution;
use ambit_model::AppProtocol;
use serde_json::{Value, json};

/// Address that Istio's registry shows for services without one.
const NO_ADDRESS: &str = "0.0.0.0";

/// Returns the entries of the page; `cluster` is the cluster ID under which addresses are listed.
pub(super) fn registry_page(services: &[RegisteredService], cluster: &str) -> Vec<Value> {
    services
        .iter()
        .map(|service| service_json(service, cluster))
        .collect()
}

fn service_json(service: &RegisteredService, cluster: &str) -> Value {
    let addresses: Vec<_> = service.addresses.iter().map(ToString::to_string).collect();
    let default = addresses.first().map_or(NO_ADDRESS, String::as_str);
    // Hosts of ServiceEntries are called by their own name, which is the service's name.
    let (registry, name) = if service.is_kubernetes {
        ("Kubernetes", &service.name)
    } else {
        ("External", &service.hostname)
    };
    let export = (!service.is_public).then(|| json!({".": {}}));
    let by_cluster = (!addresses.is_empty()).then(|| BTreeMap::from([(cluster, &addresses)]));
    json!({
        "Attributes": {
            "ServiceRegistry": registry,
            "Name": name,
            "Namespace": service.namespace,
            "Labels": null,
            "ExportTo": export,
            "LabelSelectors": service.selector,
        },
        "ports": service.ports.iter().map(port_json).collect::<Vec<_>>(),
        "creationTime": service.created,
        "hostname": service.hostname,
        "clusterVIPs": {"Addresses": by_cluster},
        "defaultAddress": default,
        "Resolution": resolution_code(service.resolution),
        "MeshExternal": service.is_external,
        "ResourceVersion": "",
    })
}

fn port_json(port: &RegisteredPort) -> Value {
    let protocol = match port.app_protocol {
        _ if !port.is_tcp => "UDP",
        AppProtocol::Http11 => "HTTP",
        AppProtocol::Http2 => "HTTP2",
        AppProtocol::Grpc => "GRPC",
        AppProtocol::Tls => "HTTPS",
        AppProtocol::Tcp => "TCP",
        AppProtocol::Unknown => "UnsupportedProtocol",
    };
    json!({"name": port.name, "port": port.number, "protocol": protocol})
}

/// Returns the number by which Istio's registry encodes a resolution.
fn resolution_code(resolution: Resolution) -> u8 {
    match resolution {
        Resolution::Static => 0,
        Resolution::Dns => 1,
        Resolution::None => 2,
        Resolution::DnsRoundRobin => 3,
        Resolution::DynamicDns => 5,
    }
}
