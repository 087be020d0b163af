//! Headers that are removed from, or added to, forwarded requests and responses.

use std::net::IpAddr;

use ambit_codec::TraceParent;
use ambit_model::{Identity, is_mesh_header};
use ambit_observation::trace::format_request_id;
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{
        self, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, FORWARDED, HOST, TE, TRAILER,
        TRANSFER_ENCODING, UPGRADE,
    },
};
use rand::Rng as _;

/// Bytes that one field occupies in a header map in addition to its name and value, including spare capacity.
const FIELD_OVERHEAD_BYTES: usize = 128;
/// Maximum number of header maps that one request has at a time: the forwarded one, one for repeated authorization, and
/// one that is buffered for a retry. The maps share names and values.
const MAX_HEADER_MAP_COPIES: usize = 3;
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Header `x-forwarded-client-cert`: the waypoint sets it to the verified identity of the client, or removes it.
const CLIENT_CERT: HeaderName = HeaderName::from_static("x-forwarded-client-cert");

/// Response header of requests that a rate limit rejected.
pub(crate) const RATE_LIMITED: HeaderName = HeaderName::from_static("x-envoy-ratelimited");
/// Header with the address of the original client, where proxies in front of the mesh are trusted.
const EXTERNAL_ADDRESS: HeaderName = HeaderName::from_static("x-envoy-external-address");

/// Hop-by-hop headers (RFC 9110, section 7.6.1), besides those that `Connection` names.
const HOP_BY_HOP_HEADERS: [HeaderName; 7] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
    // Only HTTP/1.0 proxies needed it.
    HeaderName::from_static("http2-settings"),
];

/// Header fields by which an HTTP/1.1 request asks for a protocol upgrade.
pub(super) const UPGRADE_REQUEST_HEADERS: [HeaderName; 2] = [CONNECTION, UPGRADE];

/// Forwarding and tracing headers that clients may send. Other spellings, with underscores for hyphens, are removed.
const FORWARDING_HEADERS: [&str; 9] = [
    "forwarded",
    "traceparent",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-real-ip",
    "x-request-id",
];

/// Headers of [`FORWARDING_HEADERS`] with the client's address, which neither plugins nor authorization providers may
/// change.
const CLIENT_ADDRESS_HEADERS: [HeaderName; 2] = [FORWARDED, X_FORWARDED_FOR];

/// Whether clients may not send a header. Only proxies of the mesh may send some headers, in any spelling. Other names,
/// with underscores read as hyphens, duplicate a forwarding or framing header: CGI-style applications read both alike.
pub(crate) fn is_mesh_only_header(name: &HeaderName) -> bool {
    is_mesh_header(name.as_str())
        || underscores_to_hyphens(name).is_some_and(|name| {
            is_framing_header(&name) || FORWARDING_HEADERS.contains(&name.as_str())
        })
}

/// Returns the name with underscores replaced by hyphens; `None` if it has no underscore.
fn underscores_to_hyphens(name: &HeaderName) -> Option<HeaderName> {
    let text = name.as_str();
    let folded = text.contains('_').then(|| text.replace('_', "-"))?;
    HeaderName::from_bytes(folded.as_bytes()).ok()
}

/// Whether an authorization provider or a plugin may set or remove a header. Headers that identify a caller, route a
/// request, or frame a message are excluded.
pub(crate) fn is_mutable_header(name: &HeaderName) -> bool {
    !is_framing_header(name) && !is_mesh_only_header(name) && !CLIENT_ADDRESS_HEADERS.contains(name)
}

fn is_framing_header(name: &HeaderName) -> bool {
    let framing = [HOST, CONTENT_LENGTH, EXPECT, TRAILER];
    HOP_BY_HOP_HEADERS.contains(name) || framing.contains(name)
}

/// Fields that are forbidden in trailers (RFC 9110, section 6.5.1), since they affect the interpretation of earlier
/// parts.
const FORBIDDEN_TRAILERS: [HeaderName; 11] = [
    header::AUTHORIZATION,
    header::CACHE_CONTROL,
    header::CONTENT_ENCODING,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    header::COOKIE,
    header::MAX_FORWARDS,
    header::PROXY_AUTHORIZATION,
    header::RANGE,
    header::SET_COOKIE,
    header::WWW_AUTHENTICATE,
];

/// Whether a field may be a trailer. Fields that policies evaluate, or that the waypoint sets, are accepted as headers
/// only.
pub(crate) fn is_allowed_trailer(name: &HeaderName) -> bool {
    let hyphenated = underscores_to_hyphens(name);
    let folded = hyphenated.as_ref().unwrap_or(name);
    !is_framing_header(folded)
        && !is_mesh_only_header(folded)
        && !FORBIDDEN_TRAILERS.contains(folded)
        && !FORWARDING_HEADERS.contains(&folded.as_str())
}

/// Joins multiple `cookie` lines into one, since HTTP/2 may split the header (RFC 9113, section 8.2.3) and readers
/// might evaluate different lines.
pub(crate) fn join_cookies(headers: &mut HeaderMap) {
    let lines: Vec<_> = headers
        .get_all(COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if lines.len() < 2 {
        return;
    }
    // Both the values and the separator consist of valid bytes.
    if let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

/// Error of a `Connection` header that names an end-to-end header: if the waypoint removed that header, applications
/// would receive a different request than policies have evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection header names a header that belongs to the whole request")]
pub(crate) struct EndToEndHeaderNamed;

/// Removes hop-by-hop headers and those that `Connection` names; keeps `TE: trailers`.
///
/// # Errors
/// When `Connection` names a header that must not be removed.
pub(crate) fn remove_hop_by_hop(headers: &mut HeaderMap) -> Result<(), EndToEndHeaderNamed> {
    let mut named = Vec::new();
    for value in headers.get_all(CONNECTION) {
        for name in value.as_bytes().split(|byte| *byte == b',') {
            if let Ok(name) = HeaderName::from_bytes(name.trim_ascii()) {
                named.push(name);
            }
        }
    }
    let keeps = |name: &HeaderName| {
        *name == HOST
            || *name == CONTENT_LENGTH
            || *name == header::AUTHORIZATION
            || *name == COOKIE
            || *name == TRAILER
            || *name == FORWARDED
            || *name == X_FORWARDED_FOR
            || *name == X_FORWARDED_PROTO
    };
    if named.iter().any(keeps) {
        return Err(EndToEndHeaderNamed);
    }
    let wants_trailers = headers
        .get_all(TE)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .any(|part| part.trim_ascii().eq_ignore_ascii_case(b"trailers"));
    for name in named.iter().chain(&HOP_BY_HOP_HEADERS) {
        headers.remove(name);
    }
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    Ok(())
}

/// Whether a transfer encoding other than chunked applies to a body, which would be forwarded undecoded.
pub(crate) fn has_unsupported_transfer_encoding(headers: &HeaderMap) -> bool {
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_chunked = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    encodings.next().is_some_and(|one| !is_chunked(one)) || encodings.next().is_some()
}

/// Removes headers that only proxies of the mesh may send, and duplicates of forwarding and framing headers in other
/// spellings.
pub(crate) fn remove_mesh_only_headers(headers: &mut HeaderMap) {
    let claims = headers.keys().filter(|name| is_mesh_only_header(name));
    for name in claims.cloned().collect::<Vec<_>>() {
        headers.remove(name);
    }
}

/// Removes headers from an application's response that only proxies of the mesh may send, except `x-envoy-ratelimited`,
/// which another waypoint may have set.
pub(crate) fn remove_mesh_only_response_headers(headers: &mut HeaderMap) {
    let limited = headers.remove(RATE_LIMITED);
    remove_mesh_only_headers(headers);
    if let Some(limited) = limited {
        headers.insert(RATE_LIMITED, limited);
    }
}

/// Restores the `forwarded` and `x-forwarded-for` headers that a plugin may have changed.
pub(crate) fn restore_client_address_headers(headers: &mut HeaderMap, original: &HeaderMap) {
    for name in CLIENT_ADDRESS_HEADERS {
        headers.remove(&name);
        for line in original.get_all(&name) {
            headers.append(name.clone(), line.clone());
        }
    }
}

/// Appends the caller's address to `x-forwarded-for`, and adds `x-forwarded-proto`, `x-request-id` and `traceparent`
/// where they are missing.
pub(crate) fn add_forwarding_headers(headers: &mut HeaderMap, caller: IpAddr) {
    let mut chain = Vec::new();
    for value in headers.get_all(X_FORWARDED_FOR) {
        chain.extend_from_slice(value.as_bytes());
        chain.extend_from_slice(b", ");
    }
    chain.extend_from_slice(caller.to_string().as_bytes());
    if let Ok(value) = HeaderValue::from_bytes(&chain) {
        headers.insert(X_FORWARDED_FOR, value);
    }
    headers
        .entry(X_FORWARDED_PROTO)
        .or_insert(HeaderValue::from_static("http"));
    let mut rng = rand::rng();
    if !headers.contains_key(X_REQUEST_ID)
        && let Ok(id) = HeaderValue::from_str(&format_request_id(rng.random()))
    {
        headers.insert(X_REQUEST_ID, id);
    }
    let trace = headers.get(TRACEPARENT);
    let is_valid = trace.is_some_and(|trace| TraceParent::parse(trace.as_bytes()).is_ok());
    let made = TraceParent::from_random(rng.random(), rng.random()).to_string();
    if !is_valid && let Ok(trace) = HeaderValue::from_str(&made) {
        headers.insert(TRACEPARENT, trace);
    }
}

/// Adds `x-envoy-external-address` with the client's address, which trusted proxies in front of the mesh have reported.
pub(crate) fn add_external_address(headers: &mut HeaderMap, client: IpAddr) {
    if let Ok(value) = HeaderValue::from_str(&client.to_string()) {
        headers.insert(EXTERNAL_ADDRESS, value);
    }
}

/// Adds `x-forwarded-client-cert` with the identities of the waypoint and of the client, if the waypoint is configured
/// to set this header.
pub(crate) fn add_client_identity(
    headers: &mut HeaderMap,
    waypoint: &Identity,
    client: Option<&Identity>,
) {
    let Some(client) = client else { return };
    if let Ok(value) = HeaderValue::from_str(&format!("By={waypoint};URI={client}")) {
        headers.insert(CLIENT_CERT, value);
    }
}

/// Returns the bytes that a header section and its copies occupy for the duration of a request.
pub(crate) fn header_memory_bytes(headers: &HeaderMap) -> usize {
    let texts = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len());
    texts.sum::<usize>() + headers.len() * FIELD_OVERHEAD_BYTES * MAX_HEADER_MAP_COPIES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header_map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn hop_by_hop_headers_are_removed() {
        let mut headers = header_map(&[
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("te", "gzip, trailers"),
            ("x-stays", "1"),
        ]);
        remove_hop_by_hop(&mut headers).unwrap();
        assert_eq!(headers, header_map(&[("te", "trailers"), ("x-stays", "1")]));
    }

    #[test]
    fn connection_header_cannot_remove_end_to_end_headers() {
        for name in [
            "host",
            "Content-Length",
            "authorization, x",
            "x-forwarded-for",
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONNECTION, HeaderValue::from_static(name));
            assert_eq!(
                remove_hop_by_hop(&mut headers),
                Err(EndToEndHeaderNamed),
                "{name}"
            );
        }
    }

    #[test]
    fn callers_address_is_appended_to_forwarded_for() {
        let mut headers = header_map(&[
            ("x-forwarded-for", "1.1.1.1"),
            ("x-forwarded-for", "2.2.2.2"),
        ]);
        add_forwarding_headers(&mut headers, "10.0.0.1".parse().unwrap());
        let all: Vec<_> = headers.get_all("x-forwarded-for").iter().collect();
        assert_eq!(all, ["1.1.1.1, 2.2.2.2, 10.0.0.1"]);
        assert!(headers.contains_key("x-request-id") && headers.contains_key("traceparent"));
        let before = headers.clone();
        add_forwarding_headers(&mut headers, "10.0.0.1".parse().unwrap());
        for kept in ["x-request-id", "traceparent"] {
            assert_eq!(headers[kept], before[kept]);
        }
    }

    #[test]
    fn generated_request_ids_are_version_four_uuids() {
        assert_eq!(
            format_request_id(u128::MAX),
            "ffffffff-ffff-4fff-bfff-ffffffffffff"
        );
        assert_eq!(format_request_id(0), "00000000-0000-4000-8000-000000000000");
    }

    #[test]
    fn claims_are_removed_in_every_spelling() {
        for (name, is_claim) in [
            ("x-forwarded-client-cert", true),
            ("x_forwarded_client_cert", true),
            ("x-forwarded_client-cert", true),
            ("client-cert", true),
            ("client_cert", true),
            ("client-cert-chain", true),
            ("client_cert_chain", true),
            ("client-certificate", false),
            ("x-ambit-original-peer", true),
            ("x_ambit_original_peer", true),
            ("x-ambit-anything", true),
            ("x-envoy-peer-metadata", true),
            ("x_envoy_internal", true),
            ("x-forwarded_for", true),
            ("x_real_ip", true),
            ("content_length", true),
            ("transfer_encoding", true),
            ("content-length", false),
            // A session header names an endpoint and identifies no caller.
            ("x-ambit-session-shop-r-1", false),
            ("x_ambit_session_shop", true),
            ("x-forwarded-for", false),
            ("x-real-ip", false),
            ("forwarded", false),
            ("x-user", false),
            ("x_user", false),
        ] {
            let mut headers = header_map(&[(name, "1")]);
            remove_mesh_only_headers(&mut headers);
            assert_eq!(headers.is_empty(), is_claim, "{name}");
        }
    }

    #[test]
    fn trailers_never_repeat_headers() {
        for (name, may) in [
            ("grpc-status", true),
            ("x-checksum", true),
            ("x_checksum", true),
            ("x-forwarded-client-cert", false),
            ("x_ambit_original_peer", false),
            ("x-envoy-internal", false),
            ("x-forwarded-for", false),
            ("x_forwarded_for", false),
            ("x-real-ip", false),
            ("authorization", false),
            ("cookie", false),
            ("host", false),
            ("content-length", false),
            ("content_length", false),
            ("transfer-encoding", false),
            ("upgrade", false),
        ] {
            assert_eq!(
                is_allowed_trailer(&HeaderName::from_static(name)),
                may,
                "{name}"
            );
        }
    }

    #[test]
    fn split_cookies_are_joined() {
        let mut headers = header_map(&[("cookie", "a=1"), ("x", "1"), ("cookie", "b=2; c=3")]);
        join_cookies(&mut headers);
        assert_eq!(
            headers,
            header_map(&[("cookie", "a=1; b=2; c=3"), ("x", "1")])
        );
    }

    #[test]
    fn responses_keep_only_rate_limit_headers_of_proxies() {
        let mut headers = header_map(&[
            ("x-envoy-peer-metadata-id", "forged"),
            ("x-ambit-waypoints-passed", "1"),
            ("x-envoy-ratelimited", "true"),
            ("x-version", "1"),
        ]);
        remove_mesh_only_response_headers(&mut headers);
        assert_eq!(
            headers,
            header_map(&[("x-envoy-ratelimited", "true"), ("x-version", "1")])
        );
    }
}
