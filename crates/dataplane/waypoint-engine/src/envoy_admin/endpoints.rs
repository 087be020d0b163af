//! Endpoints of clusters, in the form of Envoy's EDS (`envoy.config.endpoint.v3.ClusterLoadAssignment`), and with their
//! state as `envoy.admin.v3.ClusterStatus`. Endpoints behind tunnels have Istio's tunnel metadata, and appear with
//! their own address.

use std::collections::BTreeMap;

use ambit_model::{
    GatewayAddress, GatewayDestination, HBONE_PORT, Protocol, Workload, WorkloadStatus,
};
use serde_json::{Value, json};

use super::{
    proto_json::{any_message, remove_empty_fields, socket_address},
    snapshot::Endpoint,
};

/// Renders the endpoints of a cluster, grouped by locality.
pub(super) fn load_assignment(cluster: &str, endpoints: &[Endpoint]) -> Value {
    let mut localities: BTreeMap<[&str; 3], Vec<Value>> = BTreeMap::new();
    for endpoint in endpoints {
        let Some(address) = address(endpoint) else {
            continue;
        };
        let locality = &endpoint.workload.locality;
        let key = [&locality.region, &locality.zone, &locality.subzone].map(|part| part.as_str());
        localities.entry(key).or_default().push(json!({
            "endpoint": {"address": address},
            "health_status": match endpoint.ejected_for {
                Some(_) => "UNHEALTHY",
                None => health_status(&endpoint.workload),
            },
            "metadata": metadata(&endpoint.workload),
            "load_balancing_weight": endpoint.workload.capacity,
        }));
    }
    let groups = localities
        .into_iter()
        .map(|([region, zone, subzone], all)| {
            json!({
                "locality": locality(region, zone, subzone),
                "lb_endpoints": all,
            })
        });
    any_message(
        "envoy.config.endpoint.v3.ClusterLoadAssignment",
        json!({"cluster_name": cluster, "endpoints": groups.collect::<Value>()}),
    )
}

/// Renders the state of a cluster and its endpoints (`envoy.admin.v3.ClusterStatus`).
pub(super) fn cluster_status(cluster: &str, endpoints: &[Endpoint]) -> Value {
    let host = |endpoint: &Endpoint| {
        let of = &endpoint.workload.locality;
        let requests = endpoint.active_requests.map(|requests| {
            // The JSON form of a 64-bit integer is a string.
            json!([{"type": "GAUGE", "name": "rq_active", "value": requests.to_string()}])
        });
        Some(json!({
            "address": address(endpoint)?,
            "health_status": {
                "eds_health_status": health_status(&endpoint.workload),
                "failed_outlier_check": endpoint.ejected_for.map(|_| true),
            },
            "hostname": Some(endpoint.workload.hostname.as_str()).filter(|name| !name.is_empty()),
            "weight": endpoint.workload.capacity,
            "locality": locality(&of.region, &of.zone, &of.subzone),
            "stats": requests,
        }))
    };
    remove_empty_fields(json!({
        "name": cluster,
        "added_via_api": true,
        "eds_service_name": cluster,
        "host_statuses": endpoints.iter().filter_map(host).collect::<Value>(),
    }))
}

fn health_status(workload: &Workload) -> &'static str {
    match workload.status {
        WorkloadStatus::Healthy => "HEALTHY",
        WorkloadStatus::Unhealthy => "UNHEALTHY",
    }
}

fn locality(region: &str, zone: &str, subzone: &str) -> Value {
    let part = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    json!({"region": part(region), "zone": part(zone), "sub_zone": part(subzone)})
}

/// Renders the address of an endpoint: its own, its hostname, or the gateway of its network; `None` if the endpoint
/// receives no traffic.
fn address(endpoint: &Endpoint) -> Option<Value> {
    let workload = &endpoint.workload;
    if workload.capacity == 0 {
        return None;
    }
    if let Some(ip) = workload.workload_ips.first() {
        return Some(socket_address(&ip.to_string(), endpoint.port));
    }
    if !workload.hostname.is_empty() {
        return Some(socket_address(&workload.hostname, endpoint.port));
    }
    workload.network_gateway.as_ref().map(gateway_address)
}

fn gateway_address(gateway: &GatewayAddress) -> Value {
    let port = match gateway.hbone_mtls_port {
        0 => HBONE_PORT,
        port => port,
    };
    match &gateway.destination {
        GatewayDestination::Address(address) => socket_address(&address.address.to_string(), port),
        GatewayDestination::Hostname(name) => socket_address(&name.hostname, port),
    }
}

/// Renders the metadata of an endpoint in Istio's form: its workload, and whether it is reached through a tunnel.
fn metadata(workload: &Workload) -> Value {
    let name = [
        &workload.workload_name,
        &workload.namespace,
        &workload.canonical_name,
        &workload.canonical_revision,
        &workload.cluster_id,
    ];
    let name = name.map(|part| part.as_str()).join(";");
    let tunnel = (workload.protocol == Protocol::Hbone).then(|| json!({"tunnel": "h2"}));
    json!({"filter_metadata": {
        "istio": {"workload": name},
        "envoy.transport_socket_match": tunnel,
    }})
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn endpoint(ip: &str, change: impl FnOnce(&mut Endpoint)) -> Endpoint {
        let mut endpoint = Endpoint {
            workload: Workload {
                workload_ips: vec![ip.parse().unwrap()],
                capacity: 1,
                protocol: Protocol::Hbone,
                ..Workload::default()
            },
            port: 8080,
            ejected_for: None,
            active_requests: None,
        };
        change(&mut endpoint);
        endpoint
    }

    #[test]
    fn unready_and_ejected_endpoints_differ() {
        let endpoints = [
            endpoint("10.0.0.1", |_| {}),
            endpoint("10.0.0.2", |endpoint| {
                endpoint.workload.status = WorkloadStatus::Unhealthy;
            }),
            endpoint("10.0.0.3", |endpoint| {
                endpoint.ejected_for = Some(Duration::from_secs(3));
                endpoint.active_requests = Some(2);
            }),
            endpoint("10.0.0.4", |endpoint| endpoint.workload.capacity = 0),
        ];
        let status = cluster_status("c", &endpoints);
        let hosts = status["host_statuses"].as_array().unwrap();
        assert_eq!(hosts.len(), 3, "{status}");
        let health = |index: usize| hosts[index]["health_status"].clone();
        assert_eq!(health(0), json!({"eds_health_status": "HEALTHY"}));
        assert_eq!(health(1), json!({"eds_health_status": "UNHEALTHY"}));
        assert_eq!(health(2)["failed_outlier_check"], true);
        assert_eq!(hosts[2]["stats"][0]["value"], "2");
        let assignment = load_assignment("c", &endpoints);
        let listed = &assignment["endpoints"][0]["lb_endpoints"];
        let of = |index: usize| listed[index]["health_status"].as_str().unwrap();
        assert_eq!([of(0), of(1), of(2)], ["HEALTHY", "UNHEALTHY", "UNHEALTHY"]);
        let metadata = &listed[0]["metadata"]["filter_metadata"];
        assert_eq!(metadata["envoy.transport_socket_match"]["tunnel"], "h2");
    }
}
