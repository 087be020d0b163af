//! Tests of access-log lines.

use super::*;
use crate::http::ResponseFlag;

fn report() -> HttpRequestReport<'static> {
    HttpRequestReport {
        method: Some(b"GET"),
        path: Some(b"/a?b=c"),
        protocol: Some("HTTP/1.1"),
        response_code: ResponseCode::new(200),
        code_details: Some("via_upstream"),
        request_bytes: 3,
        response_bytes: 135,
        upstream_time: Some(Duration::from_millis(5)),
        user_agent: Some(b"curl/7.73.0-DEV"),
        request_id: Some(b"84961386-6d84-929d-98bd-c5aee93b5c88"),
        authority: Some(b"httpbin:8000"),
        upstream_host: Some("10.44.1.27:80".parse().unwrap()),
        upstream_cluster: Some("inbound-vip|8000|http|httpbin.foo.svc.cluster.local"),
        upstream_local: Some("10.44.1.23:46520".parse().unwrap()),
        route: Some("default"),
        ..minimal_report()
    }
}

fn minimal_report() -> HttpRequestReport<'static> {
    HttpRequestReport::new(
        SystemTime::UNIX_EPOCH + Duration::from_millis(1_606_339_578_409),
        Duration::from_micros(4_900),
        "10.44.1.23:37652".parse().unwrap(),
        "10.0.45.184:8000".parse().unwrap(),
    )
}

#[test]
fn text_line_is_istios() {
    assert_eq!(
        report().format_line(AccessLogFormat::Text),
        "[2020-11-25T21:26:18.409Z] \"GET /a?b=c HTTP/1.1\" 200 - via_upstream - \"-\" 3 135 4 5 \
         \"-\" \"curl/7.73.0-DEV\" \"84961386-6d84-929d-98bd-c5aee93b5c88\" \"httpbin:8000\" \
         \"10.44.1.27:80\" inbound-vip|8000|http|httpbin.foo.svc.cluster.local 10.44.1.23:46520 \
         10.0.45.184:8000 10.44.1.23:37652 - default\n"
    );
}

#[test]
fn missing_values_are_dashes() {
    let failed = HttpRequestReport {
        flags: ResponseFlag::NoHealthyUpstream.into(),
        termination_details: Some("rbac_access_denied_matched_policy[none]"),
        audit_policy: Some("shop/audit"),
        ..minimal_report()
    };
    assert_eq!(
        failed.format_line(AccessLogFormat::Text),
        "[2020-11-25T21:26:18.409Z] \"- - -\" 0 UH - rbac_access_denied_matched_policy[none] \
         \"-\" 0 0 4 - \"-\" \"-\" \"-\" \"-\" \"-\" - - 10.0.45.184:8000 10.44.1.23:37652 - - \
         audit=\"shop/audit\"\n"
    );
}

#[test]
fn a_json_line_has_istios_members() {
    assert_eq!(
        report().format_line(AccessLogFormat::Json),
        "{\"start_time\":\"2020-11-25T21:26:18.409Z\",\"method\":\"GET\",\"path\":\"/a?b=c\",\
         \"protocol\":\"HTTP/1.1\",\"response_code\":200,\"response_flags\":\"-\",\
         \"response_code_details\":\"via_upstream\",\"connection_termination_details\":null,\
         \"upstream_transport_failure_reason\":null,\"bytes_received\":3,\"bytes_sent\":135,\
         \"duration\":4,\"upstream_service_time\":\"5\",\"x_forwarded_for\":null,\
         \"user_agent\":\"curl/7.73.0-DEV\",\
         \"request_id\":\"84961386-6d84-929d-98bd-c5aee93b5c88\",\
         \"authority\":\"httpbin:8000\",\"upstream_host\":\"10.44.1.27:80\",\
         \"upstream_cluster\":\"inbound-vip|8000|http|httpbin.foo.svc.cluster.local\",\
         \"upstream_local_address\":\"10.44.1.23:46520\",\
         \"downstream_local_address\":\"10.0.45.184:8000\",\
         \"downstream_remote_address\":\"10.44.1.23:37652\",\"requested_server_name\":null,\
         \"route_name\":\"default\"}\n"
    );
    let audited = HttpRequestReport {
        audit_policy: Some("shop/audit"),
        ..report()
    };
    let line = audited.format_line(AccessLogFormat::Json);
    assert!(line.ends_with(",\"audit\":\"shop/audit\"}\n"), "{line}");
}

#[test]
fn host_outside_of_the_mesh_is_added() {
    let left = HttpRequestReport {
        external_host: Some("a\"b"),
        external_san: Some("spiffe://c"),
        ..report()
    };
    let line = left.format_line(AccessLogFormat::Text);
    assert!(
        line.ends_with(" default remote=\"a\\x22b\" remote_identity=\"spiffe://c\"\n"),
        "{line}"
    );
    let line = left.format_line(AccessLogFormat::Json);
    let end = ",\"remote\":\"a\\\"b\",\"remote_identity\":\"spiffe://c\"}\n";
    assert!(line.ends_with(end), "{line}");
}

#[test]
fn peers_cannot_forge_lines_or_fields() {
    let evil =
        b"a\" 200 - \"\r\n[2020-01-01T00:00:00.000Z] \"GET / HTTP/1.1\"\x1b[2J\xe2\x80\xa8\xff\\";
    let long = vec![b'\n'; 1 << 20];
    for value in [&evil[..], &long] {
        let forged = HttpRequestReport {
            method: Some(value),
            path: Some(value),
            forwarded_for: Some(value),
            user_agent: Some(value),
            request_id: Some(value),
            authority: Some(value),
            server_name: Some(value),
            ..report()
        };
        let text = forged.format_line(AccessLogFormat::Text);
        assert_eq!(text.matches('\n').count(), 1);
        assert!(text.trim_end().bytes().all(|b| (b' '..=b'~').contains(&b)));
        // The number of fields is unchanged.
        let quotes = |line: &str| line.matches('"').count();
        assert_eq!(
            quotes(&text),
            quotes(&report().format_line(AccessLogFormat::Text))
        );
        let outside = |line: &str| {
            let parts = line.split('"').step_by(2);
            parts.map(|part| part.matches(' ').count()).sum::<usize>()
        };
        assert_eq!(
            outside(&text),
            outside(&report().format_line(AccessLogFormat::Text))
        );

        let json = forged.format_line(AccessLogFormat::Json);
        assert_eq!(json.matches('\n').count(), 1);
        assert!(json.trim_end().bytes().all(|b| (b' '..=b'~').contains(&b)));
        let members: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&json).unwrap();
        assert_eq!(members.len(), 24);
        let expected = String::from_utf8_lossy(value);
        let path = members["path"].as_str().unwrap().trim_end_matches("...");
        assert!(expected.starts_with(path), "{path}");
        assert!(text.len() < 40_000 && json.len() < 50_000);
    }
}
