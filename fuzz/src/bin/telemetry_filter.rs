//! Fuzzes CEL conditions and access log formats of Telemetry objects: parses them, and evaluates them for a request.
#![no_main]

use std::time::{Duration, SystemTime};

use ambit_observation::{Expression, LogFormat, RequestObservation};
use http::HeaderMap;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let mut headers = HeaderMap::new();
    headers.insert("x-a", http::HeaderValue::from_static("b"));
    let address = ([10, 0, 0, 1], 80).into();
    let observation = RequestObservation {
        start_time: SystemTime::UNIX_EPOCH,
        duration: Duration::from_millis(3),
        method: Some("GET"),
        path: Some("/a?b=c"),
        protocol: Some("HTTP/1.1"),
        authority: Some("a:80"),
        response_code: 200,
        response_flags: "-",
        response_flag_bits: 0,
        response_code_details: None,
        termination_details: None,
        upstream_transport_failure: None,
        request_bytes: 0,
        response_bytes: 1,
        upstream_time: None,
        grpc_status: None,
        is_grpc: false,
        upstream_host: Some(address),
        upstream_cluster: Some("a"),
        upstream_local_address: None,
        downstream_local_address: address,
        downstream_remote_address: address,
        server_name: None,
        route_name: Some("r"),
        downstream_spiffe_id: None,
        trace_id: None,
        hostname: "h",
        request_headers: &headers,
        response_headers: &headers,
    };
    if let Ok(expression) = Expression::new(text) {
        expression.matches(&observation);
        expression.evaluate_text(&observation);
    }
    if let Ok(format) = LogFormat::parse_text(text) {
        let mut line = String::new();
        format.write_line(&observation, &mut line);
    }
    if let Ok(object) = serde_json::from_str(text)
        && let Ok(format) = LogFormat::from_json(&object)
    {
        let mut line = String::new();
        format.write_line(&observation, &mut line);
        serde_json::from_str::<serde_json::Value>(&line).expect("lines are JSON");
    }
});
