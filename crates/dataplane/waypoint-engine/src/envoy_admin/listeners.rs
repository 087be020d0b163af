//! Listeners (`envoy.config.listener.v3.Listener`). Two have the names and roles of those of Istio's waypoints:
//! `connect_terminate` ends HBONE tunnels, and `main_internal` has a filter chain for each port of a service, selected
//! by the called address. The others are the ports for metrics and readiness.

use std::collections::HashSet;

use ambit_model::{ArcStr, HBONE_PORT, Service, StreamBackend, StreamRoute};
use ambit_rt::{metrics::METRICS_PATHS, readiness::READY_PATH};
use serde_json::{Map, Value, json};

use super::{
    names::{
        BLACK_HOLE, ClusterKey, ClusterNames, MAIN_INTERNAL, ProxyKind, route_configuration_name,
    },
    proto_json::{
        ambit_metadata, any_message, merge_fields, remove_empty_fields, socket_address, type_url,
    },
    snapshot::ServedPort,
};
use crate::config::Config;

/// Name of the listener that terminates HBONE tunnels.
pub(super) const CONNECT_TERMINATE: &str = "connect_terminate";
/// Protobuf message type of Envoy's listeners.
const LISTENER: &str = "envoy.config.listener.v3.Listener";
/// Protobuf message type of Envoy's HTTP connection manager.
const HTTP_CONNECTION_MANAGER: &str =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

/// Returns the type URL of a listener.
pub(super) fn listener_type() -> String {
    type_url(LISTENER)
}

/// Renders the listener that terminates HBONE tunnels.
pub(super) fn connect_terminate(config: &Config) -> Value {
    let routes = json!([{
        "match": {"connect_matcher": {}},
        "route": {
            "cluster": MAIN_INTERNAL,
            "timeout": "0s",
            "upgrade_configs": [{"upgrade_type": "CONNECT", "connect_config": {}}],
        },
    }]);
    let mut filter = http_filter(CONNECT_TERMINATE, inline_routes(routes));
    if let Some(fields) = filter.pointer_mut("/typed_config") {
        merge_fields(
            fields,
            json!({"http2_protocol_options": {"allow_connect": true}}),
        );
    }
    let secret = |name: &str| json!({"name": name, "sds_config": {"ads": {}}});
    let tls = any_message(
        "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        json!({
            "require_client_certificate": true,
            "common_tls_context": {
                "alpn_protocols": ["h2"],
                "tls_certificate_sds_secret_configs": [secret(super::secrets::OWN_CERTIFICATE)],
                "validation_context_sds_secret_config": secret(super::secrets::ROOT_CERTIFICATES),
            },
        }),
    );
    let chain = json!({
        "name": "default",
        "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": tls},
        "filters": [filter],
    });
    listener(CONNECT_TERMINATE, config, HBONE_PORT, chain)
}

/// Renders the listeners of the metrics and readiness ports.
pub(super) fn process_listeners(config: &Config) -> [Value; 2] {
    let answered = |name: &str, port: u16, paths: &[&str]| {
        let route =
            |path: &&str| json!({"match": {"path": path}, "direct_response": {"status": 200}});
        let routes = paths.iter().map(route).collect();
        let filter = http_filter(name, inline_routes(routes));
        listener(name, config, port, json!({"filters": [filter]}))
    };
    [
        answered("metrics", config.stats_port, &METRICS_PATHS),
        answered("readiness", config.readiness_port, &[READY_PATH]),
    ]
}

/// Renders the filter chains for connections to a service port.
pub(super) fn filter_chains(names: &ClusterNames, network: &str, port: &ServedPort) -> Vec<Value> {
    let is_either = port.proxy_kinds.len() > 1;
    let mut chains = Vec::new();
    if port.is_http() {
        let name = route_configuration_name(&port.service.hostname, port.port, None);
        let routes = json!({"rds": {"route_config_name": name, "config_source": {"ads": {}}}});
        let protocols = if is_either {
            json!(["http/1.1", "h2c"])
        } else {
            Value::Null
        };
        chains.push(filter_chain(
            &name,
            filter_chain_match(network, port, json!({"application_protocols": protocols})),
            http_filter(&name, routes),
            port,
        ));
    }
    if port.proxy_kinds.contains(&ProxyKind::Tcp) {
        chains.extend(stream_chains(names, network, port));
    }
    chains
}

/// Renders the filter chains of a service port's TCP and TLS routes: one per SNI, and the default one.
fn stream_chains(names: &ClusterNames, network: &str, port: &ServedPort) -> Vec<Value> {
    let itself = names.name_of_cluster(&port.own_cluster(ProxyKind::Tcp));
    let is_for_all = |route: &&StreamRoute| {
        let is_of_port = route.ports.is_empty() || route.ports.contains(&port.port);
        is_of_port && route.clients.is_none()
    };
    let (mut chains, mut seen) = (Vec::new(), HashSet::new());
    for route in port.served.tls_routes().iter().filter(is_for_all) {
        // For each name and for all names, the oldest route applies.
        let mut server_names: Vec<&str> = route.hostnames.iter().map(ArcStr::as_str).collect();
        if server_names.is_empty() {
            server_names.push("");
        }
        server_names.retain(|name| seen.insert(name.to_string()));
        if server_names.is_empty() {
            continue;
        }
        server_names.retain(|name| !name.is_empty());
        let selects = json!({"transport_protocol": "tls", "server_names": server_names});
        let destination = destination(names, route);
        chains.push(filter_chain(
            &format!("{itself}/{}", route.name),
            filter_chain_match(network, port, selects),
            tcp_filter(&itself, destination),
            port,
        ));
    }
    let other = port.served.tcp_routes().iter().find(is_for_all);
    let (name, destination) = match other {
        Some(route) => (
            format!("{itself}/{}", route.name),
            destination(names, route),
        ),
        // Connections without a matching TLSRoute are refused.
        None if !chains.is_empty() => return chains,
        None => (itself.clone(), cluster_field(&itself)),
    };
    let selects = filter_chain_match(network, port, json!({}));
    let filter = tcp_filter(&itself, destination);
    chains.push(filter_chain(&name, selects, filter, port));
    chains
}

fn cluster_field(name: &str) -> Map<String, Value> {
    [("cluster".to_owned(), name.into())].into_iter().collect()
}

fn destination(names: &ClusterNames, route: &StreamRoute) -> Map<String, Value> {
    let name = |backend: &StreamBackend| match &backend.service {
        Ok(service) => names.name_of_cluster(&ClusterKey {
            service: service.clone(),
            port: backend.port,
            subset: None,
            kind: ProxyKind::Tcp,
        }),
        Err(_) => BLACK_HOLE.to_owned(),
    };
    // Envoy requires weights greater than zero here.
    let weighted = route.backends.iter().filter(|backend| backend.weight > 0);
    let backends: Vec<_> = weighted.collect();
    match backends.as_slice() {
        _ if route.unsupported.is_some() => cluster_field(BLACK_HOLE),
        [] => cluster_field(BLACK_HOLE),
        [one] => cluster_field(&name(one)),
        several => {
            let clusters = several
                .iter()
                .map(|backend| json!({"name": name(backend), "weight": backend.weight}));
            let weighted = json!({"clusters": clusters.collect::<Value>()});
            let field = ("weighted_clusters".to_owned(), weighted);
            [field].into_iter().collect()
        }
    }
}

fn filter_chain(name: &str, selects: Value, filter: Value, port: &ServedPort) -> Value {
    remove_empty_fields(json!({
        "name": name,
        "filter_chain_match": selects,
        "filters": [filter],
        // Envoy has no selection by the called host name.
        "metadata": ambit_metadata(json!({"authority": port.service.hostname.as_str()})),
    }))
}

/// Renders the filter-chain match on a service port's addresses in the waypoint's network. A service without an address
/// in this network is called by name only.
fn filter_chain_match(network: &str, port: &ServedPort, extra_fields: Value) -> Value {
    let Service {
        vips, cidr_vips, ..
    } = &*port.service;
    let vips = vips.iter().filter(|vip| vip.network == network);
    let vips = vips.map(|vip| {
        let length: u8 = if vip.address.is_ipv4() { 32 } else { 128 };
        json!({"address_prefix": vip.address.to_string(), "prefix_len": length})
    });
    let prefixes = cidr_vips.iter().filter(|vip| vip.network == network);
    let prefixes = prefixes.map(|vip| {
        json!({
            "address_prefix": vip.cidr.network().to_string(),
            "prefix_len": vip.cidr.prefix_len(),
        })
    });
    let mut selects = json!({
        "destination_port": port.port,
        "prefix_ranges": vips.chain(prefixes).collect::<Value>(),
    });
    merge_fields(&mut selects, extra_fields);
    selects
}

fn inline_routes(routes: Value) -> Value {
    json!({"route_config": {
        "name": "default",
        "virtual_hosts": [{"name": "default", "domains": ["*"], "routes": routes}],
    }})
}

fn http_filter(name: &str, routes: Value) -> Value {
    let mut fields = json!({
        "stat_prefix": name,
        "http_filters": [{
            "name": "envoy.filters.http.router",
            "typed_config": any_message("envoy.extensions.filters.http.router.v3.Router", json!({})),
        }],
    });
    merge_fields(&mut fields, routes);
    json!({
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": any_message(HTTP_CONNECTION_MANAGER, fields),
    })
}

fn tcp_filter(name: &str, destination: Map<String, Value>) -> Value {
    let mut fields = destination;
    fields.insert("stat_prefix".to_owned(), name.into());
    json!({
        "name": "envoy.filters.network.tcp_proxy",
        "typed_config": any_message(
            "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
            fields.into(),
        ),
    })
}

fn listener(name: &str, config: &Config, port: u16, chain: Value) -> Value {
    let any_address = if config.ipv6 { "::" } else { "0.0.0.0" };
    let mut address = socket_address(any_address, port);
    if let Some(socket) = address.pointer_mut("/socket_address") {
        merge_fields(socket, json!({"ipv4_compat": config.ipv6}));
    }
    any_message(
        LISTENER,
        json!({"name": name, "address": address, "filter_chains": [chain]}),
    )
}
