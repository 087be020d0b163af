//! Trace span of a request at a waypoint, with the kind `SERVER`, as in Envoy.
//!
//! Names and attributes follow OpenTelemetry's semantic conventions for HTTP; the tags that Istio's proxies set are
//! added.

use std::{
    borrow::Cow,
    time::{Duration, SystemTime},
};

use ambit_model::ArcStr;
use http::HeaderName;

use crate::{
    LogFormat, NeededHeaders, RequestObservation,
    format::plain_text,
    trace::{SpanId, TraceId},
};

#[cfg(test)]
mod tests;

/// Finished trace span.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the fields are OpenTelemetry's")]
pub struct Span {
    pub trace_id: TraceId,
    pub id: SpanId,
    pub parent: Option<SpanId>,
    pub trace_state: String,
    pub name: String,
    pub start: SystemTime,
    pub duration: Duration,
    pub attributes: Vec<Attribute>,
    /// Whether the span's status is an error: the server failed.
    pub is_error: bool,
}

/// Span attribute: name and value.
pub type Attribute = (Cow<'static, str>, AttributeValue);

/// Value of a span attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum AttributeValue {
    /// String attribute value.
    Text(String),
    /// Integer attribute value.
    Number(i64),
}

/// Custom tag of spans.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanTag {
    /// Name of the tag.
    pub name: ArcStr,
    /// Source of the tag's value.
    pub source: TagSource,
}

/// Source of a tag's value.
#[derive(Clone, Debug, PartialEq)]
pub enum TagSource {
    /// Fixed text of the configuration.
    Fixed(ArcStr),
    /// Value of a request header, with a default. Without header and default, the span has no tag.
    Header(HeaderName, Option<ArcStr>),
    /// Value of an access-log format for the request.
    Format(LogFormat),
}

impl SpanTag {
    /// Returns the request headers that the tag reads.
    pub fn needed_headers(&self) -> NeededHeaders {
        match &self.source {
            TagSource::Fixed(_) => NeededHeaders::default(),
            TagSource::Header(name, _) => {
                let mut wants = NeededHeaders::default();
                wants.add_request_header(name.clone());
                wants
            }
            TagSource::Format(format) => format.needed_headers(),
        }
    }

    fn value(&self, of: &RequestObservation<'_>) -> Option<String> {
        match &self.source {
            TagSource::Fixed(text) => Some(text.to_string()),
            TagSource::Header(name, otherwise) => {
                let sent = of.request_headers.get(name);
                let sent = sent.map(|sent| String::from_utf8_lossy(sent.as_bytes()).into_owned());
                sent.or_else(|| otherwise.as_ref().map(ToString::to_string))
            }
            TagSource::Format(format) => Some(plain_text(format, of)),
        }
    }
}

/// Istio's tags for source and destination of a request: names and values.
pub type PeerAttributes = Vec<(&'static str, String)>;

/// Trace context of a span.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the fields are those of a span")]
pub struct SpanContext {
    pub trace_id: TraceId,
    pub id: SpanId,
    pub parent: Option<SpanId>,
    pub trace_state: String,
}

/// Builds the span of a request. Text that peers send is truncated to `most` bytes.
pub fn build_span(
    span_context: SpanContext,
    observation: &RequestObservation<'_>,
    peer_attributes: PeerAttributes,
    tags: &[SpanTag],
    max_text_bytes: usize,
) -> Span {
    let mut attributes = AttributeList(Vec::with_capacity(32), max_text_bytes);
    add_http_attributes(observation, &mut attributes);
    add_istio_attributes(observation, &mut attributes);
    for (name, value) in peer_attributes {
        attributes.push_text(name, Some(&value));
    }
    for tag in tags {
        if let Some(value) = tag.value(observation) {
            let name = tag.name.to_string();
            attributes.0.retain(|(other, _)| *other != name);
            attributes.0.push((
                name.into(),
                AttributeValue::Text(truncate(&value, max_text_bytes)),
            ));
        }
    }
    let method = known_method(observation).unwrap_or("HTTP");
    let name = match observation.path.filter(|_| observation.is_grpc) {
        // The gRPC method is one of few.
        Some(path) => truncate(path.trim_start_matches('/'), max_text_bytes),
        None => method.to_owned(),
    };
    let SpanContext {
        trace_id: trace,
        id,
        parent,
        trace_state: state,
    } = span_context;
    Span {
        trace_id: trace,
        id,
        parent,
        trace_state: state,
        name,
        start: observation.start_time,
        duration: observation.duration,
        attributes: attributes.0,
        is_error: is_error(observation),
    }
}

/// Whether the span's status is an error: a 5xx response, a gRPC status that means a server error, or no response.
fn is_error(of: &RequestObservation<'_>) -> bool {
    // Unknown, DeadlineExceeded, Unimplemented, Internal, Unavailable, DataLoss.
    let of_grpc = [2, 4, 12, 13, 14, 15];
    let is_grpc_error = of.is_grpc
        && of
            .grpc_status
            .is_some_and(|status| of_grpc.contains(&status));
    of.response_code == 0 || of.response_code >= 500 || is_grpc_error
}

/// Returns the HTTP method if OpenTelemetry's conventions know it; `None` for any other method.
fn known_method(of: &RequestObservation<'_>) -> Option<&'static str> {
    const KNOWN_METHODS: [&str; 9] = [
        "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
    ];
    let method = of.method?;
    KNOWN_METHODS.into_iter().find(|known| *known == method)
}

struct AttributeList(Vec<Attribute>, usize);

impl AttributeList {
    fn push_text(&mut self, name: &'static str, value: Option<&str>) {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            let value = AttributeValue::Text(truncate(value, self.1));
            self.0.push((name.into(), value));
        }
    }

    fn push_number(&mut self, name: &'static str, value: Option<u64>) {
        if let Some(value) = value.and_then(|value| i64::try_from(value).ok()) {
            self.0.push((name.into(), AttributeValue::Number(value)));
        }
    }
}

fn truncate(text: &str, most: usize) -> String {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().to_owned()
}

/// Adds the attributes of OpenTelemetry's semantic conventions for HTTP.
fn add_http_attributes(of: &RequestObservation<'_>, all: &mut AttributeList) {
    all.push_text(
        "http.request.method",
        Some(known_method(of).unwrap_or("_OTHER")),
    );
    if known_method(of).is_none() {
        all.push_text("http.request.method_original", of.method);
    }
    let path = of.path.unwrap_or_default();
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    all.push_text("url.path", Some(path));
    all.push_text("url.query", Some(query));
    all.push_text("url.scheme", Some("http"));
    let authority = of.authority.unwrap_or_default();
    let host = authority
        .rsplit_once(':')
        .map_or(authority, |(host, port)| {
            if port.bytes().all(|byte| byte.is_ascii_digit()) {
                host
            } else {
                authority
            }
        });
    all.push_text("server.address", Some(host));
    all.push_number(
        "server.port",
        Some(of.downstream_local_address.port().into()),
    );
    all.push_text(
        "client.address",
        Some(&of.downstream_remote_address.ip().to_string()),
    );
    all.push_number(
        "client.port",
        Some(of.downstream_remote_address.port().into()),
    );
    let version = of
        .protocol
        .and_then(|protocol| protocol.strip_prefix("HTTP/"));
    all.push_text("network.protocol.version", version);
    let agent = of.request_headers.get(http::header::USER_AGENT);
    let agent = agent.map(|agent| String::from_utf8_lossy(agent.as_bytes()));
    all.push_text("user_agent.original", agent.as_deref());
    if of.response_code != 0 {
        all.push_number("http.response.status_code", Some(of.response_code.into()));
    }
    all.push_number("http.request.body.size", Some(of.request_bytes));
    all.push_number("http.response.body.size", Some(of.response_bytes));
    if of.is_grpc {
        all.push_text("rpc.system", Some("grpc"));
        all.push_number("rpc.grpc.status_code", of.grpc_status.map(Into::into));
    }
    if is_error(of) {
        let kind = match of.response_code {
            0 => of.response_flags.to_owned(),
            code => code.to_string(),
        };
        all.push_text("error.type", Some(&kind));
    }
}

/// Adds the tags that Envoy sets on spans in Istio's meshes.
fn add_istio_attributes(of: &RequestObservation<'_>, all: &mut AttributeList) {
    all.push_text("component", Some("proxy"));
    all.push_text("response_flags", Some(of.response_flags));
    all.push_text("upstream_cluster.name", of.upstream_cluster);
    let address = of.upstream_host.map(|address| address.to_string());
    all.push_text("upstream_address", address.as_deref());
    all.push_text(
        "peer.address",
        Some(&of.downstream_remote_address.ip().to_string()),
    );
    let id = of.request_headers.get(crate::trace::X_REQUEST_ID);
    let id = id.map(|id| String::from_utf8_lossy(id.as_bytes()));
    all.push_text("guid:x-request-id", id.as_deref());
    all.push_text("http.route.name", of.route_name);
    all.push_text("node_id", Some(of.hostname));
}

/// Returns the request headers that every span reads.
pub fn span_headers() -> NeededHeaders {
    let mut wants = NeededHeaders::default();
    wants.add_request_header(http::header::USER_AGENT);
    wants.add_request_header(crate::trace::X_REQUEST_ID);
    wants
}
