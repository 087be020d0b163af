//! Attributes of one finished request, for access logs, metrics and spans.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderName};

/// Attributes of a finished request or connection. An unknown attribute is `None` or empty.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields are those of Envoy's access log")]
pub struct RequestObservation<'a> {
    pub started: SystemTime,
    pub duration: Duration,
    pub method: Option<&'a str>,
    /// Path and query, as forwarded to the upstream.
    pub path: Option<&'a str>,
    pub protocol: Option<&'a str>,
    pub authority: Option<&'a str>,
    pub response_code: u16,
    /// Envoy's response flags, separated by commas; `-` if there are none.
    pub flags: &'a str,
    /// Response flags as Envoy's bit mask.
    pub flag_bits: u64,
    pub code_details: Option<&'a str>,
    pub termination_details: Option<&'a str>,
    pub upstream_failure: Option<&'a str>,
    pub request_bytes: u64,
    pub response_bytes: u64,
    pub upstream_time: Option<Duration>,
    pub grpc_status: Option<u32>,
    pub is_grpc: bool,
    pub upstream_host: Option<SocketAddr>,
    pub upstream_cluster: Option<&'a str>,
    pub upstream_local: Option<SocketAddr>,
    pub downstream_local: SocketAddr,
    pub downstream_remote: SocketAddr,
    pub server_name: Option<&'a str>,
    pub route: Option<&'a str>,
    /// SPIFFE ID of the downstream client, if mTLS verified it.
    pub peer: Option<&'a str>,
    /// Trace id in hexadecimal.
    pub trace_id: Option<&'a str>,
    /// Host name of the reporting proxy.
    pub hostname: &'a str,
    /// Request headers that [`NeededHeaders`] selects.
    pub request_headers: &'a HeaderMap,
    /// Response headers that [`NeededHeaders`] selects.
    pub response_headers: &'a HeaderMap,
}

/// Headers that access logs, metrics and spans read, and that the waypoint therefore copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NeededHeaders {
    /// Whether all request headers are needed.
    pub all_request: bool,
    /// Names of the request headers that are needed.
    pub request: BTreeSet<HeaderOrder>,
    /// Whether all response headers are needed.
    pub all_response: bool,
    /// Names of the response headers that are needed.
    pub response: BTreeSet<HeaderOrder>,
}

/// Header name with an order, for use in sorted sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderOrder(pub HeaderName);

impl PartialOrd for HeaderOrder {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for HeaderOrder {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.as_str().cmp(other.0.as_str())
    }
}

impl NeededHeaders {
    /// Adds the headers that another value needs.
    pub fn merge(&mut self, other: &Self) {
        self.all_request |= other.all_request;
        self.all_response |= other.all_response;
        self.request.extend(other.request.iter().cloned());
        self.response.extend(other.response.iter().cloned());
    }

    /// Adds the name of a request header.
    pub fn add_request_header(&mut self, name: HeaderName) {
        self.request.insert(HeaderOrder(name));
    }

    /// Copies the request headers that are needed.
    pub fn select_request_headers(&self, all: &HeaderMap) -> HeaderMap {
        select_headers(all, self.all_request, &self.request)
    }

    /// Copies the response headers that are needed.
    pub fn select_response_headers(&self, all: &HeaderMap) -> HeaderMap {
        select_headers(all, self.all_response, &self.response)
    }
}

fn select_headers(all: &HeaderMap, is_all: bool, names: &BTreeSet<HeaderOrder>) -> HeaderMap {
    if is_all {
        return all.clone();
    }
    let mut selected = HeaderMap::new();
    for HeaderOrder(name) in names {
        for value in all.get_all(name) {
            selected.append(name.clone(), value.clone());
        }
    }
    selected
}

#[cfg(test)]
pub(crate) mod examples {
    use super::*;

    /// Builds the attributes of a request that got a response, for tests.
    pub(crate) fn answered<'a>(
        request: &'a HeaderMap,
        response: &'a HeaderMap,
    ) -> RequestObservation<'a> {
        RequestObservation {
            started: SystemTime::UNIX_EPOCH + Duration::from_millis(1_606_339_578_409),
            duration: Duration::from_micros(4_900),
            method: Some("GET"),
            path: Some("/a?b=c"),
            protocol: Some("HTTP/1.1"),
            authority: Some("httpbin:8000"),
            response_code: 200,
            flags: "-",
            flag_bits: 0,
            code_details: Some("via_upstream"),
            termination_details: None,
            upstream_failure: None,
            request_bytes: 3,
            response_bytes: 135,
            upstream_time: Some(Duration::from_millis(5)),
            grpc_status: None,
            is_grpc: false,
            upstream_host: Some(([10, 44, 1, 27], 80).into()),
            upstream_cluster: Some("httpbin.foo.svc.cluster.local"),
            upstream_local: None,
            downstream_local: ([10, 0, 45, 184], 8000).into(),
            downstream_remote: ([10, 44, 1, 23], 37652).into(),
            server_name: None,
            route: Some("default"),
            peer: Some("spiffe://cluster.local/ns/foo/sa/sleep"),
            trace_id: None,
            hostname: "waypoint-1",
            request_headers: request,
            response_headers: response,
        }
    }
}
