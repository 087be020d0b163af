//! Clusters in Envoy's configuration.

use serde_json::{Value, json};

/// Returns a socket address in Envoy's configuration.
pub(super) fn socket_address(address: &str, port: u16) -> Value {
    json!({"socket_address": {"address": address, "port_value": port}})
}

/// Returns a cluster of Envoy with these endpoints.
pub(super) fn cluster_of(name: &str, addresses: &[Value]) -> Value {
    let endpoint = |address| json!({"endpoint": {"address": address}});
    let endpoints: Vec<Value> = addresses.iter().map(endpoint).collect();
    json!({
        "name": name,
        "type": "STATIC",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": endpoints}],
        },
        "circuit_breakers": {"thresholds": [{
            "max_connections": 1_000_000, "max_requests": 1_000_000, "max_pending_requests": 1_000_000,
        }]},
    })
}
