//! Fuzzes trace contexts in all supported request headers: a propagated context parses to the same values.
#![no_main]

use ambit_observation::trace::{IncomingTraceContext, SpanId, TraceId};
use http::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;

const NAMES: [&str; 8] = [
    "traceparent",
    "tracestate",
    "b3",
    "x-b3-traceid",
    "x-b3-spanid",
    "x-b3-parentspanid",
    "x-b3-sampled",
    "x-b3-flags",
];

fuzz_target!(|data: &[u8]| {
    let mut headers = HeaderMap::new();
    for line in data.split(|byte| *byte == b'\n') {
        let Some((which, value)) = line.split_first() else {
            continue;
        };
        let name = NAMES[usize::from(*which) % NAMES.len()];
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.append(HeaderName::from_static(name), value);
        }
    }
    let incoming = IncomingTraceContext::from_headers(&headers);
    let (trace, span) = (TraceId::new(5), SpanId::new(7));
    incoming.propagate(&mut headers, trace, span, true);
    let read = IncomingTraceContext::from_headers(&headers);
    assert_eq!(
        (read.parent, read.sampled),
        (Some((trace, span)), Some(true))
    );
});
