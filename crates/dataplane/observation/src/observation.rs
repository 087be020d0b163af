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
    pub start_time: SystemTime,
    pub duration: Duration,
    pub method: Option<&'a str>,
    /// Path and query, as forwarded to the upstream.
    pub path: Option<&'a str>,
    pub protocol: Option<&'a str>,
    pub authority: Option<&'a str>,
    pub response_code: u16,
    /// Envoy's response flags, separated by commas; `-` if there are none.
    pub response_flags: &'a str,
    /// Response flags as Envoy's bit mask.
    pub response_flag_bits: u64,
    pub response_code_details: Option<&'a str>,
    pub termination_details: Option<&'a str>,
    pub upstream_transport_failure: Option<&'a str>,
    pub request_bytes: u64,
    pub response_bytes: u64,
    pub upstream_time: Option<Duration>,
    pub grpc_status: Option<u32>,
    pub is_grpc: bool,
    pub upstream_host: Option<SocketAddr>,
    pub upstream_cluster: Option<&'a str>,
    pub upstream_local_address: Option<SocketAddr>,
    pub downstream_local_address: SocketAddr,
    pub downstream_remote_address: SocketAddr,
    pub server_name: Option<&'a str>,
    pub route_name: Option<&'a str>,
    /// SPIFFE ID of the downstream client, if mTLS verified it.
    pub downstream_spiffe_id: Option<&'a str>,
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
    pub all_request_headers: bool,
    /// Names of the request headers that are needed.
    pub request_headers: BTreeSet<OrderedHeaderName>,
    /// Whether all response headers are needed.
    pub all_response_headers: bool,
    /// Names of the response headers that are needed.
    pub response_headers: BTreeSet<OrderedHeaderName>,
}

/// Header name with an order, for use in sorted sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderedHeaderName(pub HeaderName);

impl PartialOrd for OrderedHeaderName {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OrderedHeaderName {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.as_str().cmp(other.0.as_str())
    }
}

impl NeededHeaders {
    /// Adds the headers that another value needs.
    pub fn merge(&mut self, other: &Self) {
        self.all_request_headers |= other.all_request_headers;
        self.all_response_headers |= other.all_response_headers;
        self.request_headers
            .extend(other.request_headers.iter().cloned());
        self.response_headers
            .extend(other.response_headers.iter().cloned());
    }

    /// Adds the name of a request header.
    pub fn add_request_header(&mut self, name: HeaderName) {
        self.request_headers.insert(OrderedHeaderName(name));
    }

    /// Copies the request headers that are needed.
    pub fn select_request_headers(&self, all: &HeaderMap) -> HeaderMap {
        select_headers(all, self.all_request_headers, &self.request_headers)
    }

    /// Copies the response headers that are needed.
    pub fn select_response_headers(&self, all: &HeaderMap) -> HeaderMap {
        select_headers(all, self.all_response_headers, &self.response_headers)
    }
}

fn select_headers(all: &HeaderMap, is_all: bool, names: &BTreeSet<OrderedHeaderName>) -> HeaderMap {
    if is_all {
        return all.clone();
    }
    let mut selected = HeaderMap::new();
    for OrderedHeaderName(name) in names {
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
    pub(crate) fn answered_request<'a>(
        request: &'a HeaderMap,
        response: &'a HeaderMap,
    ) -> RequestObservation<'a> {
        RequestObservation {
            start_time: SystemTime::UNIX_EPOCH + Duration::from_millis(1_606_339_578_409),
            duration: Duration::from_micros(4_900),
            method: Some("GET"),
            path: Some("/a?b=c"),
            protocol: Some("HTTP/1.1"),
            authority: Some("httpbin:8000"),
            response_code: 200,
            response_flags: "-",
            response_flag_bits: 0,
            response_code_details: Some("via_upstream"),
            termination_details: None,
            upstream_transport_failure: None,
            request_bytes: 3,
            response_bytes: 135,
            upstream_time: Some(Duration::from_millis(5)),
            grpc_status: None,
            is_grpc: false,
            upstream_host: Some(([10, 44, 1, 27], 80).into()),
            upstream_cluster: Some("httpbin.foo.svc.cluster.local"),
            upstream_local_address: None,
            downstream_local_address: ([10, 0, 45, 184], 8000).into(),
            downstream_remote_address: ([10, 44, 1, 23], 37652).into(),
            server_name: None,
            route_name: Some("default"),
            downstream_spiffe_id: Some("spiffe://cluster.local/ns/foo/sa/sleep"),
            trace_id: None,
            hostname: "waypoint-1",
            request_headers: request,
            response_headers: response,
        }
    }
}
