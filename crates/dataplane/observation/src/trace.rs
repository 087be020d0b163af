//! Trace contexts in headers: W3C's `traceparent` and `tracestate`, and B3 in one header or in several.
//!
//! Malformed headers are ignored. If a request has several trace contexts, W3C's takes precedence.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};

#[cfg(test)]
mod tests;

/// Header of W3C's trace context: trace id, span id and flags.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Header of W3C's trace context with vendor-specific state.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// Header with the request id that Envoy generates and forwards.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const B3: HeaderName = HeaderName::from_static("b3");
const B3_TRACE: HeaderName = HeaderName::from_static("x-b3-traceid");
const B3_SPAN: HeaderName = HeaderName::from_static("x-b3-spanid");
const B3_PARENT: HeaderName = HeaderName::from_static("x-b3-parentspanid");
const B3_SAMPLED: HeaderName = HeaderName::from_static("x-b3-sampled");
const B3_FLAGS: HeaderName = HeaderName::from_static("x-b3-flags");

/// Trace id, not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(u128);

/// Span id, not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId(u64);

impl TraceId {
    /// Creates an id from random bits.
    pub fn new(bits: u128) -> Self {
        Self(bits.max(1))
    }

    /// Returns the id in network byte order.
    pub fn bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

impl SpanId {
    /// Creates an id from random bits.
    pub fn new(bits: u64) -> Self {
        Self(bits.max(1))
    }

    /// Returns the id in network byte order.
    pub fn bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Trace context in the headers of an incoming request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IncomingTraceContext {
    /// Trace id, and the sender's span id, which becomes the parent span.
    pub parent: Option<(TraceId, SpanId)>,
    /// Sampling decision of the sender, if it made one.
    pub sampled: Option<bool>,
    /// Header formats in which the request carries its trace context, and in which it is forwarded.
    formats: PropagationFormats,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PropagationFormats {
    w3c: bool,
    b3: bool,
    b3_multiple: bool,
}

impl IncomingTraceContext {
    /// Parses the trace context in a request's headers.
    pub fn from_headers(headers: &HeaderMap) -> Self {
        let w3c = single_value(headers, &TRACEPARENT).and_then(parse_traceparent);
        let b3 = single_value(headers, &B3).and_then(parse_b3);
        let multiple = parse_b3_multiple(headers);
        let forms = PropagationFormats {
            w3c: w3c.is_some(),
            b3: headers.contains_key(&B3),
            b3_multiple: [&B3_TRACE, &B3_SAMPLED, &B3_FLAGS]
                .iter()
                .any(|name| headers.contains_key(*name)),
        };
        let found = w3c.or(b3).or(multiple).unwrap_or_default();
        Self {
            formats: forms,
            ..found
        }
    }

    /// Writes the trace context to the headers of the forwarded request, with the proxy's `span` as the parent.
    pub fn propagate(&self, headers: &mut HeaderMap, trace: TraceId, span: SpanId, sampled: bool) {
        let flag = u8::from(sampled);
        insert_header(
            headers,
            TRACEPARENT,
            &format!("00-{trace}-{span}-{flag:02x}"),
        );
        if !self.formats.w3c {
            // The state belongs to a context that is missing or malformed.
            headers.remove(&TRACESTATE);
        }
        if self.formats.b3 {
            insert_header(headers, B3, &format!("{trace}-{span}-{flag}"));
        }
        if self.formats.b3_multiple {
            insert_header(headers, B3_TRACE, &trace.to_string());
            insert_header(headers, B3_SPAN, &span.to_string());
            insert_header(headers, B3_SAMPLED, &flag.to_string());
            headers.remove(&B3_FLAGS);
            match self.parent {
                Some((_, parent)) => insert_header(headers, B3_PARENT, &parent.to_string()),
                None => drop(headers.remove(&B3_PARENT)),
            }
        }
    }
}

fn insert_header(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        headers.insert(name, value);
    }
}

/// Returns the value of a header that occurs exactly once.
fn single_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut all = headers.get_all(name).iter();
    let first = all.next()?;
    all.next().is_none().then(|| first.as_bytes())
}

fn parse_hex(text: &[u8], upper: bool) -> Option<u128> {
    if text.is_empty() || text.len() > 32 {
        return None;
    }
    let mut value = 0;
    for byte in text {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' if upper => byte - b'A' + 10,
            _ => return None,
        };
        value = (value << 4) | u128::from(digit);
    }
    Some(value)
}

fn parse_trace_id(text: &[u8], upper: bool) -> Option<TraceId> {
    let value = parse_hex(text, upper).filter(|value| *value != 0)?;
    Some(TraceId(value))
}

fn parse_span_id(text: &[u8], upper: bool) -> Option<SpanId> {
    let is_whole = text.len() == 16;
    let value = parse_hex(text, upper).filter(|value| is_whole && *value != 0)?;
    u64::try_from(value).ok().map(SpanId)
}

fn parse_traceparent(text: &[u8]) -> Option<IncomingTraceContext> {
    let version = parse_hex(text.get(..2)?, false)?;
    let is_ended = match (version, text.get(55)) {
        (0xff, _) => false,
        (0, behind) => behind.is_none(),
        // Later versions may add fields.
        (_, behind) => behind.is_none_or(|behind| *behind == b'-'),
    };
    let dashes = [2, 35, 52];
    let is_form = dashes.iter().all(|at| text.get(*at) == Some(&b'-'));
    if !is_ended || !is_form {
        return None;
    }
    let flags = parse_hex(text.get(53..55)?, false)?;
    Some(IncomingTraceContext {
        parent: Some((
            parse_trace_id(text.get(3..35)?, false)?,
            parse_span_id(text.get(36..52)?, false)?,
        )),
        sampled: Some(flags & 1 == 1),
        formats: PropagationFormats::default(),
    })
}

fn parse_b3(text: &[u8]) -> Option<IncomingTraceContext> {
    let mut parts = text.split(|byte| *byte == b'-');
    let (first, second) = (parts.next()?, parts.next());
    let Some(second) = second else {
        return Some(IncomingTraceContext {
            sampled: Some(parse_sampling_decision(first)?),
            ..IncomingTraceContext::default()
        });
    };
    let sampled = match parts.next() {
        Some(state) => Some(parse_sampling_decision(state)?),
        None => None,
    };
    if let Some(parent) = parts.next() {
        parse_span_id(parent, true)?;
    }
    Some(IncomingTraceContext {
        parent: Some((parse_b3_trace_id(first)?, parse_span_id(second, true)?)),
        sampled,
        formats: PropagationFormats::default(),
    })
    .filter(|_| parts.next().is_none())
}

fn parse_b3_trace_id(text: &[u8]) -> Option<TraceId> {
    matches!(text.len(), 16 | 32).then(|| parse_trace_id(text, true))?
}

fn parse_sampling_decision(text: &[u8]) -> Option<bool> {
    match text {
        b"0" | b"false" => Some(false),
        b"1" | b"d" | b"true" => Some(true),
        _ => None,
    }
}

fn parse_b3_multiple(headers: &HeaderMap) -> Option<IncomingTraceContext> {
    let trace = single_value(headers, &B3_TRACE).and_then(parse_b3_trace_id);
    let span = single_value(headers, &B3_SPAN).and_then(|text| parse_span_id(text, true));
    let is_debug = single_value(headers, &B3_FLAGS) == Some(b"1");
    let sampled = single_value(headers, &B3_SAMPLED).and_then(parse_sampling_decision);
    let sampled = if is_debug { Some(true) } else { sampled };
    let parent = trace.zip(span);
    (parent.is_some() || sampled.is_some()).then_some(IncomingTraceContext {
        parent,
        sampled,
        formats: PropagationFormats::default(),
    })
}

/// Sampling rate of 100 %, in ten thousandths.
pub const SAMPLE_ALWAYS: u32 = 10_000;

/// Decides whether to sample a request that carries no sampling decision: `share` of 10000 requests are sampled. A
/// request id in Envoy's format makes all proxies on the request's path decide alike; otherwise the random number of
/// `draw` decides.
pub fn should_sample(share: u32, request_id: Option<&[u8]>, draw: impl FnOnce() -> u32) -> bool {
    if share == 0 || share >= SAMPLE_ALWAYS {
        return share != 0;
    }
    let of_id = request_id.and_then(|id| {
        let is_uuid = id.len() == 36 && [8, 13, 18, 23].iter().all(|at| id.get(*at) == Some(&b'-'));
        let number = parse_hex(id.get(..8)?, true).filter(|_| is_uuid)?;
        u32::try_from(number).ok()
    });
    of_id.unwrap_or_else(draw) % SAMPLE_ALWAYS < share
}

/// Formats random bits as a request id: a UUID of version 4.
pub fn format_request_id(bits: u128) -> String {
    let bits = bits & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    let text = format!("{bits:032x}");
    let part = |from: usize, to: usize| text.get(from..to).unwrap_or_default();
    format!(
        "{}-{}-{}-{}-{}",
        part(0, 8),
        part(8, 12),
        part(12, 16),
        part(16, 20),
        part(20, 32)
    )
}
