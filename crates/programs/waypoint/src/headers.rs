//! Headers that are not passed on, and those that are made.

use std::net::IpAddr;

use ambit_codec::{ORIGINAL_PEER_HEADER, TraceParent};
use ambit_model::Identity;
use ambit_observation::trace::request_id;
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE},
};
use rand::Rng as _;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Who the client is, for applications that believe it: made by the waypoint, or not there.
const CLIENT_CERT: HeaderName = HeaderName::from_static("x-forwarded-client-cert");

/// Headers of one hop (RFC 9110, section 7.6.1), besides those that `Connection` names.
const HOP_BY_HOP: [HeaderName; 7] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
    // Only HTTP/1.0 proxies needed it.
    HeaderName::from_static("http2-settings"),
];

/// Headers of an upgrade that a request asks for.
pub(super) const UPGRADE_OF_REQUESTS: [HeaderName; 2] = [CONNECTION, UPGRADE];

/// Headers that only proxies of the mesh may set.
const IDENTITY: [&str; 2] = ["x-forwarded-client-cert", ORIGINAL_PEER_HEADER];

/// Whether somebody who is asked about a request may set or remove a header: not what says who somebody is, where a request
/// goes, or how a message is framed.
pub(crate) fn may_be_changed(name: &HeaderName) -> bool {
    let framing = [HOST, CONTENT_LENGTH, EXPECT, TRAILER];
    !HOP_BY_HOP.contains(name)
        && !framing.contains(name)
        && !IDENTITY.contains(&name.as_str())
        && !name.as_str().starts_with("x-ambit-")
}

/// `Connection` names a header that says what a message means: whoever honours it removes what others rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection header names a header that belongs to the whole request")]
pub(crate) struct EndToEnd;

/// Removes the headers of one hop; with `upgrade`, the header of that name and what goes with it are put back.
///
/// # Errors
/// When `Connection` names what must not be removed.
pub(crate) fn remove_hop_by_hop(headers: &mut HeaderMap) -> Result<(), EndToEnd> {
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
            || *name == http::header::CONTENT_LENGTH
            || *name == http::header::AUTHORIZATION
            || *name == http::header::COOKIE
            || *name == TRAILER
            || *name == X_FORWARDED_FOR
            || *name == X_FORWARDED_PROTO
    };
    if named.iter().any(keeps) {
        return Err(EndToEnd);
    }
    let wants_trailers = headers
        .get_all(TE)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .any(|part| part.trim_ascii().eq_ignore_ascii_case(b"trailers"));
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    Ok(())
}

/// Whether a body is encoded for the hop in another way than by chunks: it would be passed on as if it were not.
pub(crate) fn has_other_encoding(headers: &HeaderMap) -> bool {
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_chunked = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    encodings.next().is_some_and(|one| !is_chunked(one)) || encodings.next().is_some()
}

/// Removes what says who somebody is, and comes from who may not say it.
pub(crate) fn remove_identities(headers: &mut HeaderMap) {
    for name in IDENTITY {
        headers.remove(name);
    }
}

/// Adds what applications are told of the caller.
pub(crate) fn add_forwarding(headers: &mut HeaderMap, caller: IpAddr) {
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
        && let Ok(id) = HeaderValue::from_str(&request_id(rng.random()))
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

/// `x-forwarded-client-cert`, for waypoints that are asked to set it.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn headers_of_one_hop_stay_behind() {
        let mut headers = map(&[
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("te", "gzip, trailers"),
            ("x-stays", "1"),
        ]);
        remove_hop_by_hop(&mut headers).unwrap();
        assert_eq!(headers, map(&[("te", "trailers"), ("x-stays", "1")]));
    }

    #[test]
    fn a_connection_header_cannot_remove_what_others_rely_on() {
        for name in [
            "host",
            "Content-Length",
            "authorization, x",
            "x-forwarded-for",
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONNECTION, HeaderValue::from_static(name));
            assert_eq!(remove_hop_by_hop(&mut headers), Err(EndToEnd), "{name}");
        }
    }

    #[test]
    fn the_callers_address_is_added_to_those_that_were_there() {
        let mut headers = map(&[
            ("x-forwarded-for", "1.1.1.1"),
            ("x-forwarded-for", "2.2.2.2"),
        ]);
        add_forwarding(&mut headers, "10.0.0.1".parse().unwrap());
        let all: Vec<_> = headers.get_all("x-forwarded-for").iter().collect();
        assert_eq!(all, ["1.1.1.1, 2.2.2.2, 10.0.0.1"]);
        assert!(headers.contains_key("x-request-id") && headers.contains_key("traceparent"));
        let before = headers.clone();
        add_forwarding(&mut headers, "10.0.0.1".parse().unwrap());
        for kept in ["x-request-id", "traceparent"] {
            assert_eq!(headers[kept], before[kept]);
        }
    }

    #[test]
    fn a_uuid_is_of_version_four() {
        assert_eq!(
            request_id(u128::MAX),
            "ffffffff-ffff-4fff-bfff-ffffffffffff"
        );
        assert_eq!(request_id(0), "00000000-0000-4000-8000-000000000000");
    }

    #[test]
    fn who_somebody_is_is_not_taken_from_the_request() {
        let mut headers = map(&[
            (
                "x-forwarded-client-cert",
                "URI=spiffe://cluster.local/ns/a/sa/b",
            ),
            ("x-ambit-original-peer", "none"),
        ]);
        remove_identities(&mut headers);
        assert!(headers.is_empty());
    }
}
