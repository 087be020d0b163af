//! Tests of formatted requests, and of formats that are rejected.

use http::HeaderMap;
use serde_json::json;

use super::*;
use crate::observation::examples::answered_request;

fn example_request_headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("user-agent", "curl/7 \"x\"".parse().unwrap());
    headers.insert("x-request-id", "84961386".parse().unwrap());
    headers
}

fn formatted_line(format: &str) -> String {
    let (request, response) = (example_request_headers(), HeaderMap::new());
    let mut line = String::new();
    let format = LogFormat::parse_text(format).unwrap();
    format.write_line(&answered_request(&request, &response), &mut line);
    line
}

#[test]
fn istio_format_writes_istio_lines() {
    assert_eq!(
        formatted_line(ISTIO_TEXT_FORMAT),
        "[2020-11-25T21:26:18.409Z] \"GET /a?b=c HTTP/1.1\" 200 - via_upstream - \"-\" 3 135 4 5 \"-\" \
         \"curl/7 \\x22x\\x22\" \"84961386\" \"httpbin:8000\" \"10.44.1.27:80\" httpbin.foo.svc.cluster.local - \
         10.0.45.184:8000 10.44.1.23:37652 - default\n"
    );
}

#[test]
fn operators_have_arguments_and_lengths() {
    for (format, expected) in [
        ("100%% %RESPONSE_CODE%", "100% 200"),
        ("%REQ(X-NONE?USER-AGENT):6%", "curl/7"),
        ("%REQ(USER-AGENT)%", "curl/7\\x20\\x22x\\x22"),
        ("%START_TIME(%s)%", "1606339578"),
        ("%START_TIME(%s%3f)%", "1606339578409"),
        (
            "%START_TIME(%Y/%m/%dT%H:%M:%S%z)%",
            "2020/11/25T21:26:18+0000",
        ),
        ("%RESP(:STATUS)% %REQ(:SCHEME)%", "200 http"),
        (
            "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%|%HOSTNAME%",
            "10.44.1.23|waypoint-1",
        ),
        (
            "%DOWNSTREAM_PEER_URI_SAN%",
            "spiffe://cluster.local/ns/foo/sa/sleep",
        ),
        ("%GRPC_STATUS%%TRACE_ID%", "--"),
    ] {
        assert_eq!(formatted_line(format), expected, "{format}");
    }
}

#[test]
fn json_has_the_types_of_single_operators() {
    let format = json!({
        "code": "%RESPONSE_CODE%",
        "both": "%RESPONSE_CODE% of %REQ(:METHOD)%",
        "none": "%ROUTE_NAME%/%REQUESTED_SERVER_NAME%",
        "nothing": "%REQUESTED_SERVER_NAME%",
        "agent": "%REQ(USER-AGENT)%",
        "fixed": 1,
        "in": {"deep": ["%DURATION%"]},
    });
    let (request, response) = (example_request_headers(), HeaderMap::new());
    let mut line = String::new();
    let format = LogFormat::from_json(&format).unwrap();
    format.write_line(&answered_request(&request, &response), &mut line);
    let value: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        value,
        json!({
            "code": 200, "both": "200 of GET", "none": "default/-", "nothing": null,
            "agent": "curl/7 \"x\"", "fixed": 1, "in": {"deep": [4]},
        })
    );
    assert!(line.ends_with("}\n"));
}

/// Format of the reference lines that Envoy 1.40 logged for a request that it could not forward.
const ENVOYS_FORMAT: &str = "%START_TIME(%s)%|%REQ(:METHOD)%|%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%|%PROTOCOL%|%RESPONSE_CODE%|\
     %RESPONSE_FLAGS%|%RESPONSE_CODE_DETAILS%|%CONNECTION_TERMINATION_DETAILS%|\
     %UPSTREAM_TRANSPORT_FAILURE_REASON%|%BYTES_RECEIVED%|%BYTES_SENT%|%DURATION%|\
     %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%|%REQ(X-FORWARDED-FOR)%|%REQ(USER-AGENT)%|%REQ(USER-AGENT):4%|\
     %REQ(:AUTHORITY)%|%UPSTREAM_HOST%|%UPSTREAM_CLUSTER_RAW%|%DOWNSTREAM_LOCAL_ADDRESS%|\
     %DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT%|%DOWNSTREAM_LOCAL_PORT%|\
     %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%|%REQUESTED_SERVER_NAME%|%ROUTE_NAME%|%GRPC_STATUS%|\
     %RESP(:STATUS)%|%REQ(:SCHEME)%|%REQ(X-NONE?X-OTHER)%|%%|%REQ(X-NONE?USER-AGENT):6%|\
     %DOWNSTREAM_PEER_URI_SAN%";
const ENVOYS_LINE: &str = "1795416555|GET|/gone|HTTP/1.1|503|UF|\
     upstream_reset_before_response_started{remote_connection_failure|\
     delayed_connect_error:_Connection_refused}|-|delayed_connect_error:_Connection_refused|0|98|0|-|-|\
     curl/7|curl|127.0.0.1:18080|127.0.0.1:18082|gone|127.0.0.1:18080|127.0.0.1|18080|127.0.0.1|-|-|-|503|\
     http|o|%|curl/7|-";
const ENVOYS_JSON: &str = r#"{"agent":"curl/7","both":"503 of GET","code":503,"flags":"UF","in":{"deep":[98]},"none":"-/-","nothing":null,"port":18080,"status":"503","time":null,"upstream":"127.0.0.1:18082"}"#;

#[test]
fn lines_equal_those_of_envoy() {
    let mut request = HeaderMap::new();
    request.insert("user-agent", "curl/7".parse().unwrap());
    request.insert("x-other", "o".parse().unwrap());
    let response = HeaderMap::new();
    let failure = "delayed_connect_error:_Connection_refused";
    let details =
        format!("upstream_reset_before_response_started{{remote_connection_failure|{failure}}}");
    let observation = RequestObservation {
        start_time: std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_795_416_555),
        duration: std::time::Duration::ZERO,
        path: Some("/gone"),
        authority: Some("127.0.0.1:18080"),
        response_code: 503,
        response_flags: "UF",
        response_code_details: Some(&details),
        upstream_transport_failure: Some(failure),
        request_bytes: 0,
        response_bytes: 98,
        upstream_time: None,
        upstream_host: Some(([127, 0, 0, 1], 18082).into()),
        upstream_cluster: Some("gone"),
        downstream_local_address: ([127, 0, 0, 1], 18080).into(),
        downstream_remote_address: ([127, 0, 0, 1], 40000).into(),
        route_name: None,
        downstream_spiffe_id: None,
        ..answered_request(&request, &response)
    };
    let mut line = String::new();
    LogFormat::parse_text(ENVOYS_FORMAT)
        .unwrap()
        .write_line(&observation, &mut line);
    assert_eq!(line, ENVOYS_LINE);
    let object = json!({
        "code": "%RESPONSE_CODE%",
        "both": "%RESPONSE_CODE% of %REQ(:METHOD)%",
        "none": "%ROUTE_NAME%/%REQUESTED_SERVER_NAME%",
        "nothing": "%REQUESTED_SERVER_NAME%",
        "agent": "%REQ(USER-AGENT)%",
        "in": {"deep": ["%BYTES_SENT%"]},
        "time": "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%",
        "status": "%RESP(:STATUS)%",
        "upstream": "%UPSTREAM_HOST%",
        "flags": "%RESPONSE_FLAGS%",
        "port": "%DOWNSTREAM_LOCAL_PORT%",
    });
    let mut line = String::new();
    LogFormat::from_json(&object)
        .unwrap()
        .write_line(&observation, &mut line);
    let envoys: Value = serde_json::from_str(ENVOYS_JSON).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), envoys);
}

#[test]
fn unknown_operators_are_refused_by_name() {
    let error = |text: &str| LogFormat::parse_text(text).unwrap_err().to_string();
    assert_eq!(
        error("a %REQ(X"),
        "a % at byte 2 begins an operator that does not end; a % itself is written %%"
    );
    assert!(error("%COLOUR%").starts_with("%COLOUR% is no operator"));
    assert!(error("%DYNAMIC_METADATA(a:b)%").contains("is no operator that is known here"));
    assert!(error("%REQ%").contains("lacks a name"));
    assert!(error("%REQ(A?B?C)%").contains("more than two"));
    assert!(error("%REQ(A):x%").contains("may have a length"));
    assert!(error("%START_TIME(%q)%").contains("form of time"));
    assert_eq!(
        LogFormat::parse_text(&"a".repeat(MAX_FORMAT_BYTES + 1)),
        Err(FormatError::TooLong)
    );
    assert_eq!(
        LogFormat::from_json(&json!([])),
        Err(FormatError::NotAnObject)
    );
    let deep = (0..20).fold(json!("x"), |inner, _| json!({"a": inner}));
    assert_eq!(LogFormat::from_json(&deep), Err(FormatError::TooDeep));
}

proptest::proptest! {
    #[test]
    fn any_format_is_refused_or_written(
        parts in proptest::collection::vec(
            proptest::sample::select(vec![
                "%", "%%", "REQ", "(", ")", ":", "X-A", "?", "START_TIME", "%Y", "%3f", "DURATION", "é", "\"", " ", "5",
            ]),
            0..20,
        ),
    ) {
        let text = parts.concat();
        let headers = HeaderMap::new();
        let observation = answered_request(&headers, &headers);
        let object = json!({ "a": text });
        let both = (LogFormat::parse_text(&text), LogFormat::from_json(&object));
        if let (Ok(text), Ok(object)) = both {
            let (mut line, mut made) = (String::new(), String::new());
            text.write_line(&observation, &mut line);
            object.write_line(&observation, &mut made);
            proptest::prop_assert!(serde_json::from_str::<Value>(&made).is_ok(), "{}", made);
        }
    }
}
