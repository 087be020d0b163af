//! Bootstrap section of the dump: node, admin port and control plane (`envoy.config.bootstrap.v3.Bootstrap`). Settings
//! that hold tokens or paths of tokens are omitted.

use http::Uri;
use serde_json::{Value, json};

use super::proto_json::{any_message, duration, remove_empty_fields, socket_address};
use crate::config::Config;

/// Name of the control plane's cluster, as in Istio's proxies.
const XDS_CLUSTER: &str = "xds-grpc";

/// Identity of the waypoint in the bootstrap section: node id and program version.
#[derive(Clone, Debug)]
pub(super) struct Node<'a> {
    /// Node id that the waypoint sends to the control plane.
    pub(super) id: &'a str,
    /// Version of the waypoint program.
    pub(super) version: &'a str,
}

/// Renders the bootstrap of a waypoint.
pub(super) fn bootstrap(config: &Config, node: &Node<'_>) -> Value {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let control_plane = config.xds.address.as_deref();
    let control_plane = control_plane.and_then(|address| address.parse::<Uri>().ok());
    let clusters = control_plane.as_ref().and_then(control_plane_cluster);
    remove_empty_fields(json!({
        "node": {
            "id": node.id,
            "cluster": format!("{}.{}", config.gateway.name, config.gateway.namespace),
            "user_agent_name": "ambit-waypoint",
            "user_agent_version": env!("CARGO_PKG_VERSION"),
            "metadata": {
                "NAME": config.own.name.as_str(),
                "NAMESPACE": config.own.namespace.as_str(),
                "SERVICE_ACCOUNT": config.own.service_account.as_str(),
                "WORKLOAD_NAME": config.gateway.name.as_str(),
                "GATEWAY_NAME": config.gateway.name.as_str(),
                "INSTANCE_IPS": config.ip.map(|ip| ip.to_string()),
                "NODE_NAME": text(&config.node),
                "CLUSTER_ID": text(&config.cluster_id),
                "NETWORK": text(&config.network),
                "ISTIO_VERSION": node.version,
            },
        },
        "admin": {"address": socket_address("127.0.0.1", config.admin_port)},
        "dynamic_resources": {"ads_config": {
            "api_type": "DELTA_GRPC",
            "transport_api_version": "V3",
            "grpc_services": [{"envoy_grpc": {"cluster_name": XDS_CLUSTER}}],
        }},
        "static_resources": {"clusters": clusters},
    }))
}

fn control_plane_cluster(address: &Uri) -> Option<Value> {
    let host = address.host()?.trim_matches(['[', ']']);
    let port = address.port_u16().unwrap_or(443);
    Some(json!([{
        "name": XDS_CLUSTER,
        "type": "STRICT_DNS",
        "connect_timeout": duration(ambit_proxy::dial::CONNECT_TIMEOUT),
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": any_message(
                "envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                json!({"explicit_http_config": {"http2_protocol_options": {}}}),
            ),
        },
        "load_assignment": {
            "cluster_name": XDS_CLUSTER,
            "endpoints": [{"lb_endpoints": [{
                "endpoint": {"address": socket_address(host, port)},
            }]}],
        },
    }]))
}
