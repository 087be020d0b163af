//! Tests that collectors decode the encoded messages.

use std::time::Duration;

use ambit_observation::trace::{SpanId, TraceId};

use super::*;

#[test]
fn spans_carry_their_context_and_times() {
    let span = Span {
        trace_id: TraceId::new(5),
        id: SpanId::new(6),
        parent: Some(SpanId::new(7)),
        trace_state: "a=b".to_owned(),
        name: "GET".to_owned(),
        start: UNIX_EPOCH + Duration::from_secs(1),
        duration: Duration::from_millis(2),
        attributes: vec![
            ("url.path".into(), AttributeValue::Text("/".to_owned())),
            (
                "http.response.status_code".into(),
                AttributeValue::Number(503),
            ),
        ],
        is_error: true,
    };
    let resource = Resource {
        attributes: vec![("service.name", "waypoint.shop".to_owned())],
    };
    let sent = encode_traces(
        &resource,
        &[
            span.clone(),
            Span {
                parent: None,
                is_error: false,
                ..span
            },
        ],
    );
    let read = ExportTraceServiceRequest::decode(sent.as_slice()).unwrap();
    let of = &read.resource_spans[0];
    assert_eq!(
        of.resource.as_ref().unwrap().attributes[0].key,
        "service.name"
    );
    let [first, second] = of.scope_spans[0].spans.as_slice() else {
        panic!("two spans");
    };
    assert_eq!(
        first.trace_id,
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5]
    );
    assert_eq!(first.parent_span_id, [0, 0, 0, 0, 0, 0, 0, 7]);
    assert_eq!(
        first.end_time_unix_nano - first.start_time_unix_nano,
        2_000_000
    );
    assert_eq!(first.attributes.len(), 2);
    assert_eq!(first.status.as_ref().unwrap().code, 2);
    assert!(second.parent_span_id.is_empty() && second.status.is_none());
}

#[test]
fn lines_arrive_with_names_and_spans() {
    let line = LogEntry {
        time: UNIX_EPOCH,
        log_name: "mesh".to_owned(),
        body: "GET /".to_owned(),
        attributes: vec![("code".to_owned(), "200".to_owned())],
        span: Some(([1; 16], [2; 8])),
    };
    let read =
        ExportLogsServiceRequest::decode(encode_logs(&Resource::default(), &[line]).as_slice());
    let read = read.unwrap();
    let record = &read.resource_logs[0].scope_logs[0].log_records[0];
    assert_eq!(record.trace_id, [1; 16]);
    let names: Vec<_> = record
        .attributes
        .iter()
        .map(|one| one.key.as_str())
        .collect();
    assert_eq!(names, ["log_name", "code"]);
}

#[test]
fn rejected_part_is_named_in_the_response() {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTracePartialSuccess;
    let answer = ExportTraceServiceResponse {
        partial_success: Some(ExportTracePartialSuccess {
            rejected_spans: 3,
            error_message: "no".to_owned(),
        }),
    };
    let bytes = answer.encode_to_vec();
    assert_eq!(rejected_spans(&bytes), 3);
    assert_eq!(rejected_spans(b"\xff\xff"), 0);
    assert_eq!(rejected_log_records(&[]), 0);
}
