//! Calls that plugins make to services of the mesh, under the identity reserved for calls of the plugin's namespace
//! ([`crate::calls`]). Plugins may call services of their own namespace, and those that ReferenceGrants allow.

use std::time::Duration;

use ambit_codec::grpc_frame;
use ambit_model::{ArcStr, NamespacedHostname, WaypointExtension};
use ambit_wasm::{Call, CallKind, CallResponse, HeaderSection};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Uri,
    header::{CONTENT_TYPE, HOST, TE},
};
use http_body_util::{BodyExt as _, Full, Limited};

use crate::{
    calls::{self, CallCharge, CallError, CallIdentity, CallResponseError, Callee},
    extensions::CallCause,
    headers,
    in_flight_checks::{CheckPermit, CheckService},
    memory::BudgetExhausted,
    message::{Body, Version},
    waypoint::Shard,
};

/// Maximum size of the response to a plugin's call, in bytes.
pub(super) const MAX_RESPONSE_BYTES: usize = 1 << 20;
/// Timeout of a plugin's call for which the plugin sets none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// gRPC status UNAVAILABLE, for calls that failed.
pub(super) const UNAVAILABLE: u32 = 14;
const DEADLINE_EXCEEDED: u32 = 4;

/// Reason why a plugin's call has no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallFailure {
    #[error(
        "{0:?} is no upstream: give outbound|<port>||<host>, <host>:<port> or <namespace>/<host>:<port>"
    )]
    InvalidUpstream(String),
    #[error(
        "{service} is not of the plugin's namespace {namespace}; add a ReferenceGrant from WasmPlugin of {namespace} in the service's"
    )]
    NotGranted {
        service: NamespacedHostname,
        namespace: ArcStr,
    },
    #[error("the request cannot be made")]
    InvalidRequest,
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("the response is truncated, or has more than {MAX_RESPONSE_BYTES} bytes")]
    InvalidResponse,
    #[error("no answer in time")]
    Timeout,
    #[error("too many calls because of this caller's requests, or of this plugin, are in flight")]
    TooManyCalls,
    #[error(transparent)]
    BudgetExhausted(#[from] BudgetExhausted),
}

/// Makes a plugin's call and returns the response, or an empty one if the call has failed.
pub(super) async fn make_call(
    shard: &Shard,
    plugin: &WaypointExtension,
    call: Call,
    cause: CallCause,
) -> CallResponse {
    let (upstream, kind) = (call.upstream.clone(), call.kind);
    let timeout = if call.timeout.is_zero() {
        DEFAULT_TIMEOUT
    } else {
        call.timeout
    };
    let made = tokio::time::timeout(timeout, Box::pin(try_call(shard, plugin, call, &cause))).await;
    match made.unwrap_or(Err(CallFailure::Timeout)) {
        Ok(response) => response,
        Err(error) => {
            let text = ambit_proxy::report::format_error_chain(&error);
            tracing::debug!(
                plugin = plugin.key(),
                upstream,
                error = text,
                "a plugin's call came to nothing"
            );
            let status = match (kind, &error) {
                (CallKind::Http, _) => 0,
                (CallKind::Grpc, CallFailure::Timeout) => DEADLINE_EXCEEDED,
                (CallKind::Grpc, _) => UNAVAILABLE,
            };
            CallResponse {
                grpc_status: (status, text),
                ..CallResponse::default()
            }
        }
    }
}

async fn try_call(
    shard: &Shard,
    plugin: &WaypointExtension,
    call: Call,
    cause: &CallCause,
) -> Result<CallResponse, CallFailure> {
    let (service, port) = resolve_callee(plugin, &call.upstream)?;
    let kind = call.kind;
    let version = match kind {
        CallKind::Http => Version::Http1,
        CallKind::Grpc => Version::Http2,
    };
    let request = build_request(call, &service, port)?;
    let callee = Callee {
        service: &service,
        port,
        caller: CallIdentity::Namespace(&plugin.namespace),
        hops: cause.hops,
        initiator: cause.initiator.as_deref(),
    };
    let mut counted = acquire_permits(shard, plugin, cause, version, &request)?;
    let response = calls::request(shard, callee, version, request).await?;
    let (parts, body) = response.into_parts();
    let collected = match &mut counted {
        Some((_, charge)) => charge.read_response(body, MAX_RESPONSE_BYTES).await?,
        None => {
            let collected = Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
            collected.map_err(|_| CallFailure::InvalidResponse)?
        }
    };
    let trailers = collected.trailers().cloned().unwrap_or_default();
    let body = collected.to_bytes();
    let head = HeaderSection {
        pseudo_headers: vec![(":status", parts.status.as_str().to_owned())],
        headers: parts.headers,
    };
    Ok(match kind {
        CallKind::Http => CallResponse {
            head,
            body,
            trailers,
            ..CallResponse::default()
        },
        CallKind::Grpc => grpc_response(head, &body, trailers),
    })
}

/// Counts a plugin's call as check in flight, and charges it to the caller of the request behind it, until the returned
/// permits are dropped; `None` for a call that the plugin makes on its own.
pub(super) fn acquire_permits(
    shard: &Shard,
    plugin: &WaypointExtension,
    cause: &CallCause,
    version: Version,
    request: &Request<Body>,
) -> Result<Option<(CheckPermit, CallCharge)>, CallFailure> {
    let Some(caller) = cause.initiator.as_deref() else {
        return Ok(None);
    };
    let service = CheckService::Plugin(plugin.key().into());
    let checks = &shard.checks;
    let permit = checks.acquire(caller.identity.as_ref(), caller.ip, service);
    let permit = permit.ok_or(CallFailure::TooManyCalls)?;
    let charge = CallCharge::new(&caller.memory, version, request)?;
    Ok(Some((permit, charge)))
}

impl From<CallResponseError> for CallFailure {
    fn from(from: CallResponseError) -> Self {
        match from {
            CallResponseError::TooLargeOrTruncated => Self::InvalidResponse,
            CallResponseError::BudgetExhausted(exhausted) => Self::BudgetExhausted(exhausted),
        }
    }
}

/// Builds the HTTP request of a plugin's call.
pub(super) fn build_request(
    call: Call,
    service: &NamespacedHostname,
    port: u16,
) -> Result<Request<Body>, CallFailure> {
    let Call {
        mut head,
        body,
        trailers,
        kind,
        ..
    } = call;
    let method = head.take_pseudo_header(":method").unwrap_or_default();
    let method = Method::from_bytes(method.as_bytes()).map_err(|_| CallFailure::InvalidRequest)?;
    if method == Method::CONNECT {
        return Err(CallFailure::InvalidRequest);
    }
    let path = head
        .take_pseudo_header(":path")
        .filter(|path| path.starts_with('/'));
    let path = path.ok_or(CallFailure::InvalidRequest)?;
    let host = head.take_pseudo_header(":authority");
    let host = host.unwrap_or_else(|| format!("{}:{port}", service.hostname));
    let mut all = head.headers;
    if headers::remove_hop_by_hop(&mut all).is_err() {
        return Err(CallFailure::InvalidRequest);
    }
    headers::remove_mesh_only_headers(&mut all);
    all.remove(http::header::CONTENT_LENGTH);
    all.remove(HOST);
    let uri: Uri;
    let content;
    match kind {
        CallKind::Http => {
            uri = path.parse().map_err(|_| CallFailure::InvalidRequest)?;
            all.insert(
                HOST,
                HeaderValue::from_str(&host).map_err(|_| CallFailure::InvalidRequest)?,
            );
            content = body;
        }
        CallKind::Grpc => {
            uri = format!("http://{host}{path}")
                .parse()
                .map_err(|_| CallFailure::InvalidRequest)?;
            all.insert(TE, HeaderValue::from_static("trailers"));
            all.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            content = add_grpc_prefix(&body).ok_or(CallFailure::InvalidRequest)?;
        }
    }
    let mut request = Request::new(with_trailers(content, trailers));
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.headers_mut() = all;
    if kind == CallKind::Grpc {
        *request.version_mut() = http::Version::HTTP_2;
    }
    Ok(request)
}

/// Prepends gRPC's length prefix to a message.
pub(super) fn add_grpc_prefix(message: &[u8]) -> Option<Bytes> {
    grpc_frame::encode_grpc_frame(message).map(Bytes::from)
}

fn with_trailers(body: Bytes, trailers: HeaderMap) -> Body {
    let full = Full::new(body);
    let trailers = (!trailers.is_empty()).then_some(Ok(trailers));
    let body = full.with_trailers(std::future::ready(trailers));
    body.map_err(|never| match never {}).boxed_unsync()
}

/// Parses the gRPC status in headers or trailers, if they contain one.
pub(super) fn grpc_status(headers: &HeaderMap) -> Option<(u32, String)> {
    let status = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
    let text = headers
        .get("grpc-message")
        .and_then(|text| text.to_str().ok());
    Some((status, text.unwrap_or_default().to_owned()))
}

/// Converts a unary gRPC response to the plugin's form: its single message, and the status from the trailers, or from
/// the headers of a response without body.
fn grpc_response(head: HeaderSection, body: &Bytes, trailers: HeaderMap) -> CallResponse {
    let unknown = || (2, "the response is not valid gRPC".to_owned());
    let mut grpc_status = self::grpc_status(&trailers)
        .or_else(|| self::grpc_status(&head.headers))
        .unwrap_or_else(unknown);
    let message = body
        .split_first_chunk::<5>()
        .and_then(|([packed, a, b, c, d], rest)| {
            let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
            (*packed == 0 && length <= rest.len()).then(|| body.slice(5..5 + length))
        });
    if grpc_status.0 == 0 && message.is_none() {
        grpc_status = unknown();
    }
    CallResponse {
        head,
        body: message.unwrap_or_default(),
        trailers,
        grpc_status,
    }
}

/// Resolves the upstream that a plugin names to a service, if the plugin may call it.
pub(super) fn resolve_callee(
    plugin: &WaypointExtension,
    text: &str,
) -> Result<(NamespacedHostname, u16), CallFailure> {
    let (service, port) = parse_upstream(text, &plugin.namespace)?;
    if !plugin.may_call(&service) {
        let namespace = plugin.namespace.clone();
        return Err(CallFailure::NotGranted { service, namespace });
    }
    Ok((service, port))
}

/// Parses the upstream that a plugin names: Istio's cluster name, or a host and port.
fn parse_upstream(
    text: &str,
    own_namespace: &str,
) -> Result<(NamespacedHostname, u16), CallFailure> {
    let wrong = || CallFailure::InvalidUpstream(text.chars().take(200).collect());
    let parts: Vec<&str> = text.split('|').collect();
    let (host, port) = match parts[..] {
        ["outbound", port, _, host] => (host, port),
        [one] => one.rsplit_once(':').ok_or_else(wrong)?,
        _ => return Err(wrong()),
    };
    let port = port
        .parse::<u16>()
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(wrong)?;
    let (namespace, host) = match host.split_once('/') {
        Some(both) => both,
        None => {
            // Only names of the form `name.namespace.svc…` refer to another namespace.
            let mut labels = host.split('.');
            let named = (labels.next(), labels.next(), labels.next());
            match named {
                (Some(_), Some(namespace), Some("svc")) => (namespace, host),
                _ => (own_namespace, host),
            }
        }
    };
    if host.is_empty() || namespace.is_empty() {
        return Err(wrong());
    }
    Ok((NamespacedHostname::new(namespace, host), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_are_named_as_clusters_or_hosts() {
        let of = |text| {
            parse_upstream(text, "own")
                .map(|(name, port)| format!("{name} {port}"))
                .ok()
        };
        for (text, is) in [
            (
                "outbound|80||a.shop.svc.cluster.local",
                "shop/a.shop.svc.cluster.local 80",
            ),
            (
                "a.shop.svc.cluster.local:81",
                "shop/a.shop.svc.cluster.local 81",
            ),
            ("bank/api.example:443", "bank/api.example 443"),
            ("api.example:443", "own/api.example 443"),
        ] {
            assert_eq!(of(text).as_deref(), Some(is), "{text}");
        }
        for wrong in [
            "",
            "a",
            "a:0",
            "a:70000",
            "inbound|80||a",
            "outbound|x||a",
            ":80",
            "/a:80",
        ] {
            assert_eq!(of(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn plugins_call_their_namespace_and_granted_services() {
        let plugin = WaypointExtension {
            namespace: "tenant".into(),
            callees: vec![NamespacedHostname::new("open", "*.open.svc.cluster.local")],
            ..WaypointExtension::default()
        };
        for (upstream, may_call) in [
            ("outbound|80||own.tenant.svc.cluster.local", true),
            // A short host name belongs to the plugin's namespace, not to the waypoint's.
            ("api.example:443", true),
            ("tenant/api.example:443", true),
            ("any.open.svc.cluster.local:80", true),
            ("outbound|80||vault.bank.svc.cluster.local", false),
            ("vault.bank.svc.cluster.local:80", false),
            ("bank/vault.bank.svc.cluster.local:80", false),
            ("bank/own.tenant.svc.cluster.local:80", false),
            ("infra/waypoint.infra.svc.cluster.local:15008", false),
            ("open/api.example:443", false),
            // A name of another namespace within the plugin's does not exist.
            ("tenant/vault.bank.svc.cluster.local:80", true),
        ] {
            let called = resolve_callee(&plugin, upstream);
            assert_eq!(called.is_ok(), may_call, "{upstream}: {called:?}");
        }
    }

    #[test]
    fn grpc_response_is_a_message_and_a_status() {
        let answer = |body: &'static [u8], status: Option<&'static str>| {
            let mut trailers = HeaderMap::new();
            if let Some(status) = status {
                trailers.insert("grpc-status", HeaderValue::from_static(status));
            }
            let response = grpc_response(
                HeaderSection::default(),
                &Bytes::from_static(body),
                trailers,
            );
            (response.grpc_status.0, response.body)
        };
        assert_eq!(
            answer(&[0, 0, 0, 0, 2, 7, 8], Some("0")),
            (0, Bytes::from_static(&[7, 8]))
        );
        assert_eq!(answer(&[], Some("5")), (5, Bytes::new()));
        for broken in [
            &[][..],
            &[0, 0, 0],
            &[0, 0, 0, 0, 9, 1],
            &[1, 0, 0, 0, 1, 1],
        ] {
            assert_eq!(answer(broken, Some("0")).0, 2);
        }
        assert_eq!(answer(&[0, 0, 0, 0, 0], None).0, 2);
    }
}
