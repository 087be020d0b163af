//! Tests of incoming and forwarded trace contexts.

use super::*;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let pair = |(name, value): &(&'static str, &str)| {
        (HeaderName::from_static(name), value.parse().unwrap())
    };
    pairs.iter().map(pair).collect()
}

fn parsed_parent(pairs: &[(&'static str, &str)]) -> Option<(String, String, Option<bool>)> {
    let incoming = IncomingTraceContext::from_headers(&headers(pairs));
    let (trace, span) = incoming.parent?;
    Some((trace.to_string(), span.to_string(), incoming.sampled))
}

#[test]
fn contexts_are_read_in_three_forms() {
    let found = |sampled| Some((TRACE.to_owned(), SPAN.to_owned(), sampled));
    let w3c = |flags: &str| format!("00-{TRACE}-{SPAN}-{flags}");
    assert_eq!(
        parsed_parent(&[("traceparent", &w3c("01"))]),
        found(Some(true))
    );
    assert_eq!(
        parsed_parent(&[("traceparent", &w3c("00"))]),
        found(Some(false))
    );
    assert_eq!(
        parsed_parent(&[("traceparent", &format!("cc-{TRACE}-{SPAN}-03-more"))]),
        found(Some(true))
    );
    assert_eq!(
        parsed_parent(&[("b3", &format!("{TRACE}-{SPAN}-1-05e3ac9a4f6e3b90"))]),
        found(Some(true))
    );
    assert_eq!(
        parsed_parent(&[("b3", &format!("{TRACE}-{SPAN}-d"))]),
        found(Some(true))
    );
    assert_eq!(
        parsed_parent(&[("b3", &format!("{TRACE}-{SPAN}"))]),
        found(None)
    );
    let multiple = [
        ("x-b3-traceid", TRACE),
        ("x-b3-spanid", SPAN),
        ("x-b3-sampled", "0"),
    ];
    assert_eq!(parsed_parent(&multiple), found(Some(false)));
    let debug = [multiple[0], multiple[1], ("x-b3-flags", "1")];
    assert_eq!(parsed_parent(&debug), found(Some(true)));
    // A 64-bit trace id equals a 128-bit id with leading zeros.
    let short = [("x-b3-traceid", "a3ce929d0e0e4736"), multiple[1]];
    let long = "0000000000000000a3ce929d0e0e4736".to_owned();
    assert_eq!(parsed_parent(&short), Some((long, SPAN.to_owned(), None)));
    // W3C's context wins.
    assert_eq!(
        parsed_parent(&[("traceparent", &w3c("01")), ("b3", "0")]),
        found(Some(true))
    );
    assert_eq!(
        IncomingTraceContext::from_headers(&headers(&[("b3", "0")])).sampled,
        Some(false)
    );
}

#[test]
fn malformed_contexts_are_ignored() {
    for text in [
        "",
        "00",
        &format!("ff-{TRACE}-{SPAN}-01"),
        &format!("00-{TRACE}-{SPAN}-01-x"),
        &format!("cc-{TRACE}-{SPAN}-01x"),
        &format!("00-{}-{SPAN}-01", "0".repeat(32)),
        &format!("00-{TRACE}-{}-01", "0".repeat(16)),
        &format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
        &format!("00_{TRACE}-{SPAN}-01"),
    ] {
        assert_eq!(parsed_parent(&[("traceparent", text)]), None, "{text}");
    }
    for text in [
        "x",
        "1-2-3",
        &format!("{TRACE}-{SPAN}-1-2-3"),
        &format!("{TRACE}-{SPAN}-2"),
    ] {
        let incoming = IncomingTraceContext::from_headers(&headers(&[("b3", text)]));
        assert_eq!((incoming.parent, incoming.sampled), (None, None), "{text}");
    }
    let twice = format!("00-{TRACE}-{SPAN}-01");
    let mut all = headers(&[("traceparent", &twice)]);
    all.append(TRACEPARENT, twice.parse().unwrap());
    assert_eq!(IncomingTraceContext::from_headers(&all).parent, None);
}

#[test]
fn contexts_are_forwarded_in_their_formats() {
    let (trace, span) = (TraceId::new(5), SpanId::new(7));
    let written = |pairs: &[(&'static str, &str)]| {
        let mut all = headers(pairs);
        IncomingTraceContext::from_headers(&all).propagate(&mut all, trace, span, true);
        let mut lines: Vec<_> = all
            .iter()
            .map(|(name, value)| format!("{name}={}", value.to_str().unwrap()))
            .collect();
        lines.sort();
        lines
    };
    let own = format!("traceparent=00-{trace}-{span}-01");
    assert_eq!(written(&[]), std::slice::from_ref(&own));
    let w3c = format!("00-{TRACE}-{SPAN}-01");
    let state = [("traceparent", w3c.as_str()), ("tracestate", "a=b")];
    assert_eq!(written(&state), [own.clone(), "tracestate=a=b".to_owned()]);
    // The state of a malformed context is not forwarded.
    assert_eq!(
        written(&[("traceparent", "x"), ("tracestate", "a=b")]),
        std::slice::from_ref(&own)
    );
    assert_eq!(
        written(&[("b3", "1")]),
        [format!("b3={trace}-{span}-1"), own.clone()]
    );
    assert_eq!(
        written(&[
            ("x-b3-traceid", TRACE),
            ("x-b3-spanid", SPAN),
            ("x-b3-flags", "1")
        ]),
        [
            own,
            format!("x-b3-parentspanid={SPAN}"),
            "x-b3-sampled=1".to_owned(),
            format!("x-b3-spanid={span}"),
            format!("x-b3-traceid={trace}"),
        ]
    );
}

#[test]
fn fraction_of_requests_is_sampled() {
    let never = || panic!("nothing is to be drawn");
    assert!(!should_sample(0, None, never));
    assert!(should_sample(SAMPLE_ALWAYS, None, never));
    assert!(should_sample(100, None, || 99) && !should_sample(100, None, || 100));
    // Request ids in Envoy's format decide: 0x000f4240 is a million.
    let id = b"000f4240-6d84-429d-98bd-c5aee93b5c88";
    assert!(should_sample(1, Some(id), never));
    assert!(!should_sample(
        1,
        Some(b"000f4241-6d84-429d-98bd-c5aee93b5c88"),
        never
    ));
    assert!(should_sample(100, Some(b"mine"), || 0));
}

#[test]
fn generated_request_id_is_a_random_uuid() {
    assert_eq!(format_request_id(0), "00000000-0000-4000-8000-000000000000");
    assert_eq!(
        format_request_id(u128::MAX),
        "ffffffff-ffff-4fff-bfff-ffffffffffff"
    );
}

proptest::proptest! {
    #[test]
    fn forwarded_contexts_read_back_for_any_input(
        lines in proptest::collection::vec((0..8usize, "[0-9a-fA-FdT -]{0,60}"), 0..6),
    ) {
        let names = [
            TRACEPARENT, TRACESTATE, B3, B3_TRACE, B3_SPAN, B3_PARENT, B3_SAMPLED, B3_FLAGS,
        ];
        let mut all = HeaderMap::new();
        for (name, value) in lines {
            all.append(names[name].clone(), value.parse().unwrap());
        }
        let (trace, span) = (TraceId::new(5), SpanId::new(7));
        IncomingTraceContext::from_headers(&all).propagate(&mut all, trace, span, true);
        let read = IncomingTraceContext::from_headers(&all);
        proptest::prop_assert_eq!((read.parent, read.sampled), (Some((trace, span)), Some(true)));
    }
}
