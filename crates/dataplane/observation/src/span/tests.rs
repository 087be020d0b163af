//! Tests of the attributes of a request's span.

use http::HeaderMap;

use super::*;
use crate::observation::examples::answered_request;

fn build_test_span(change: impl FnOnce(&mut RequestObservation<'_>), tags: &[SpanTag]) -> Span {
    let (mut request, response) = (HeaderMap::new(), HeaderMap::new());
    request.insert("user-agent", "curl/7".parse().unwrap());
    let mut observation = answered_request(&request, &response);
    change(&mut observation);
    let span_context = SpanContext {
        trace_id: TraceId::new(1),
        id: SpanId::new(2),
        parent: Some(SpanId::new(3)),
        trace_state: String::new(),
    };
    build_span(
        span_context,
        &observation,
        vec![("istio.mesh_id", "m".to_owned())],
        tags,
        64,
    )
}

fn text_attribute(span: &Span, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|(other, _)| other == name)?;
    Some(match &found.1 {
        AttributeValue::Text(text) => text.clone(),
        AttributeValue::Number(number) => number.to_string(),
    })
}

#[test]
fn span_attributes_follow_the_conventions() {
    let span = build_test_span(|_| (), &[]);
    assert_eq!((span.name.as_str(), span.is_error), ("GET", false));
    for (name, value) in [
        ("http.request.method", "GET"),
        ("url.path", "/a"),
        ("url.query", "b=c"),
        ("server.address", "httpbin"),
        ("server.port", "8000"),
        ("client.address", "10.44.1.23"),
        ("network.protocol.version", "1.1"),
        ("user_agent.original", "curl/7"),
        ("http.response.status_code", "200"),
        ("istio.mesh_id", "m"),
        ("upstream_address", "10.44.1.27:80"),
    ] {
        assert_eq!(
            text_attribute(&span, name).as_deref(),
            Some(value),
            "{name}"
        );
    }
    assert_eq!(text_attribute(&span, "error.type"), None);
}

#[test]
fn span_attributes_name_failures_and_grpc_methods() {
    let failed = build_test_span(|of| of.response_code = 503, &[]);
    assert!(failed.is_error);
    assert_eq!(
        text_attribute(&failed, "error.type").as_deref(),
        Some("503")
    );
    // A client error is no error of the server.
    assert!(!build_test_span(|of| of.response_code = 404, &[]).is_error);
    let grpc = build_test_span(
        |of| {
            of.path = Some("/shop.Cart/Add");
            (of.is_grpc, of.grpc_status) = (true, Some(14));
        },
        &[],
    );
    assert_eq!((grpc.name.as_str(), grpc.is_error), ("shop.Cart/Add", true));
    // Names are few, whatever methods clients send.
    let odd = build_test_span(|of| of.method = Some("BREW"), &[]);
    assert_eq!(odd.name, "HTTP");
    assert_eq!(
        text_attribute(&odd, "http.request.method").as_deref(),
        Some("_OTHER")
    );
}

#[test]
fn tags_are_fixed_of_headers_or_in_formats() {
    let tag = |name: &str, source| SpanTag {
        name: name.into(),
        source,
    };
    let tags = [
        tag("team", TagSource::Fixed("cart".into())),
        tag("agent", TagSource::Header(http::header::USER_AGENT, None)),
        tag("absent", TagSource::Header(http::header::REFERER, None)),
        tag(
            "otherwise",
            TagSource::Header(http::header::REFERER, Some("none".into())),
        ),
        tag(
            "to",
            TagSource::Format(LogFormat::parse_text("%REQ(:METHOD)% %ROUTE_NAME%").unwrap()),
        ),
        tag("component", TagSource::Fixed("waypoint".into())),
    ];
    let span = build_test_span(|_| (), &tags);
    for (name, value) in [
        ("team", Some("cart")),
        ("agent", Some("curl/7")),
        ("absent", None),
        ("otherwise", Some("none")),
        ("to", Some("GET default")),
        ("component", Some("waypoint")),
    ] {
        assert_eq!(text_attribute(&span, name).as_deref(), value, "{name}");
    }
    let twice = span
        .attributes
        .iter()
        .filter(|(name, _)| name == "component");
    assert_eq!(twice.count(), 1);
}

#[test]
fn texts_are_cut() {
    let long: &str = format!("/{}", "é".repeat(100)).leak();
    let span = build_test_span(|of| of.path = Some(long), &[]);
    assert_eq!(text_attribute(&span, "url.path").unwrap().len(), 63);
}
