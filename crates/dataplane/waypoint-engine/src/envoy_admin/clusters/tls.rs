//! TLS that the waypoint originates to endpoints (`envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext`). The
//! dump names the file of a client certificate, never that of its key.

use std::net::IpAddr;

use ambit_model::{ArcStr, DestinationTls, Service, TlsRoots};
use serde_json::{Value, json};

use super::super::proto_json::any_message;

/// Renders the transport socket of a destination with TLS.
pub(super) fn transport_socket(tls: &DestinationTls, service: &Service) -> Value {
    let server_name = tls.server_name.as_ref().unwrap_or(&service.hostname);
    let context = json!({
        "sni": server_name.as_str(),
        "common_tls_context": {
            "validation_context": validation_context(tls, server_name),
            "tls_certificates": tls.client.iter().map(|files| json!({
                "certificate_chain": {"filename": files.certificate.as_str()},
            })).collect::<Value>(),
        },
    });
    json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": any_message(
            "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            context,
        ),
    })
}

/// Renders the validation context of endpoint certificates; null if they are not verified.
fn validation_context(tls: &DestinationTls, server_name: &ArcStr) -> Value {
    let (trusted, system) = match &tls.roots {
        TlsRoots::Unverified => return Value::Null,
        TlsRoots::System => (Value::Null, json!({})),
        TlsRoots::Pem(text) => (json!({"inline_string": text.as_str()}), Value::Null),
        TlsRoots::File(path) => (json!({"filename": path.as_str()}), Value::Null),
    };
    let mut names = tls.names.as_slice();
    if names.is_empty() {
        names = std::slice::from_ref(server_name);
    }
    json!({
        "trusted_ca": trusted,
        "system_root_certs": system,
        "match_typed_subject_alt_names": names.iter().map(|name| json!({
            "san_type": san_type(name),
            "matcher": {"exact": name.as_str()},
        })).collect::<Value>(),
    })
}

fn san_type(name: &str) -> &'static str {
    if name.contains("://") {
        "URI"
    } else if name.parse::<IpAddr>().is_ok() {
        "IP_ADDRESS"
    } else {
        "DNS"
    }
}
