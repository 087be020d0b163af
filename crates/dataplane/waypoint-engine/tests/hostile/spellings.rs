//! Tests that no alternative spelling of a request bypasses policies that deny it or limits that count it.

use std::time::Duration;

use ambit_model::{
    HttpAction, HttpAttribute, HttpCondition, HttpOperation, HttpPathMatch, HttpPolicy,
    HttpRouteMatch, HttpRule, HttpValue, LimitKey, LocalLimit, PathPattern, PolicyKey, RateLimit,
    StringMatch, WaypointRecord,
};
use ambit_xds::WaypointUpdate;

use crate::{
    application::{ReceivedRequest, StrictServer},
    fixture::{HTTP1, World, record_name},
};

const VIP: &str = "10.0.0.1";

/// Paths that some application reads as `/admin`.
const SPELLINGS: &[&str] = &[
    "/admin",
    "/admin?x=/public",
    "/./admin",
    "/public/../admin",
    "/%61dmin",
    "/%61%64%6d%69%6e",
    "/%61%64%6D%69%6E",
    "/public/%2e%2e/admin",
    "/public/%2E./admin",
    "/public/.%2e/admin",
    "/%2e/admin",
    "\\admin",
    "/public\\..\\admin",
    "/public/..\\admin",
    "//admin",
    "///admin",
    "/.//admin",
    "/public//../../admin",
    "/%2fadmin",
    "/%2Fadmin",
    "/%5cadmin",
    "/%5Cadmin",
    "/public%2f..%2fadmin",
    "/public/..%2fadmin",
    "/public%2f../admin",
    "/public/..%5cadmin",
    "/public%5c..%5cadmin",
    "/admin;x=y",
    "/admin;",
    "/;x/admin",
    "/public/..;/admin",
    "/public/..;x=y/admin",
    "/.;/admin",
    "/%2e%2e;/admin",
    "/../admin",
    "/..//admin",
    "/public/../../admin",
    "/%2e%2e/admin",
    "/admin#",
    "/admin#/../public",
    "/admin%00",
    "/admin%00.html",
    "/admin%09",
    "/admin%0d%0a",
    "/adm\tin",
    "/admin ",
    "/%u0061dmin",
    "/%c1%a1dmin",
    "/%c0%afadmin",
    "/public/%c0%ae%c0%ae/admin",
    "/%e0%80%afadmin",
    "http://web/admin",
    "admin",
    "/admin%",
    "/admin%2",
    "/%;x/admin",
    "/ADMIN",
    "/aDmin",
    "/admin/",
    "/admin//",
    "/admin/.",
    "/admin/x/..",
    "/admin%2F",
    "/admin%2f%2f",
    "/admin\\",
    "/admin%5C",
    "/admin%20",
    "/%20admin",
    "/admin.",
    "/admin%2e",
    "/admin;/public",
    "/admin;x/../public/../admin",
    "/admin%3bx",
    "/admin%3B/public",
    "/admin%3f/public",
    "/admin%23/public",
    "/%2561dmin",
    "/%252561dmin",
    "/%25252e%25252e/admin",
    "/%252fadmin",
    "/public/%252e%252e/admin",
    "/public/%252e%252e%252fadmin",
    "/admin%2500",
    "/admin%250d%250a",
    "/admin%2500.css",
    "/public/..%20/admin",
    "/public%5c%2e%2e%5cadmin",
    "/public/%2e%2e;/admin",
    "/public;x/../admin",
    "/;/admin",
    "/;/;/admin",
    "//;//admin",
    "/.;x/admin",
    "/%3b/admin",
    "/./././admin",
    "/public/./../admin",
    "/public/x/../../admin",
    "/admin?",
    "/%41dmin",
    "/%41%44%4D%49%4E",
];

async fn world() -> (World, StrictServer) {
    let (world, strict) = (World::new().await, StrictServer::start().await);
    world.serve("web", VIP, &[strict.address]);
    (world, strict)
}

fn deny(name: &str, rule: HttpRule) -> WaypointUpdate {
    let policy = HttpPolicy {
        key: PolicyKey::from_resource_name(&format!("ns/{name}")),
        for_gateway: true,
        action: HttpAction::Deny,
        rules: vec![rule],
        ..HttpPolicy::default()
    };
    WaypointUpdate::Upserted(record_name(name), WaypointRecord::from(policy))
}

fn rule_for(operation: HttpOperation) -> HttpRule {
    HttpRule {
        operations: vec![operation],
        ..HttpRule::default()
    }
}

fn paths(patterns: &[&str]) -> Vec<PathPattern> {
    let texts = patterns.iter();
    let texts = texts.map(|text| PathPattern::Text(StringMatch::from_pattern(text)));
    texts.collect()
}

/// Builds a request from its request line and additional header lines.
fn request(line: &str, lines: &[&str]) -> Vec<u8> {
    let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    format!("{line} HTTP/1.1\r\nHost: web\r\nConnection: close\r\n{lines}\r\n").into_bytes()
}

/// Returns the request lines that the application has received since the last call.
fn received_lines(application: &mut StrictServer) -> Vec<String> {
    let received = application.received().into_iter();
    let line = |received| match received {
        ReceivedRequest::Complete { head, .. } => {
            head.lines().next().unwrap_or_default().to_owned()
        }
        other => format!("{other:?}"),
    };
    received.map(line).collect()
}

#[tokio::test]
async fn no_spelling_of_a_denied_path_reaches_the_application() {
    assert!(SPELLINGS.len() >= 96, "{}", SPELLINGS.len());
    let (world, mut application) = world().await;
    let client = world.client().await;
    let admin = HttpOperation {
        paths: paths(&["/admin", "/admin/*"]),
        ..HttpOperation::default()
    };
    world.publish(deny("admin", rule_for(admin)));
    let mut wrong = Vec::new();
    for spelling in SPELLINGS {
        let response = client
            .send_bytes(VIP, HTTP1, &request(&format!("GET {spelling}"), &[]))
            .await;
        let came = received_lines(&mut application);
        if !came.is_empty() || !matches!(response.statuses()[..], [400 | 403]) {
            wrong.push(format!(
                "{spelling:?}: {:?}, came {came:?}",
                response.statuses()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for other in ["/", "/administrator", "/public/admin", "/.well-known/admin"] {
        let response = client
            .send_bytes(VIP, HTTP1, &request(&format!("GET {other}"), &[]))
            .await;
        assert_eq!(response.statuses(), [200], "{other}");
    }
}

#[tokio::test]
async fn no_spelling_of_a_denied_request_reaches_the_application() {
    let (world, mut application) = world().await;
    let client = world.client().await;
    let methods = HttpOperation {
        methods: vec![StringMatch::Exact("DELETE".into())],
        ..HttpOperation::default()
    };
    let everything = HttpOperation {
        paths: paths(&["/*"]),
        methods: vec![StringMatch::Exact("OPTIONS".into())],
        ..HttpOperation::default()
    };
    let host = HttpOperation {
        hosts: vec![StringMatch::Exact("internal:80".into())],
        ..HttpOperation::default()
    };
    let root = HttpCondition {
        attribute: HttpAttribute::Header("x-role".into()),
        values: vec![HttpValue::Text(StringMatch::Exact("root".into()))],
        not_values: Vec::new(),
    };
    let cookie = HttpCondition {
        attribute: HttpAttribute::Header("cookie".into()),
        values: vec![HttpValue::Text(StringMatch::Exact("role=root".into()))],
        not_values: Vec::new(),
    };
    for (name, operation) in [("methods", methods), ("all", everything), ("host", host)] {
        world.publish(deny(name, rule_for(operation)));
    }
    for (name, condition) in [("role", root), ("cookie", cookie)] {
        let rule = HttpRule {
            conditions: vec![condition],
            ..HttpRule::default()
        };
        world.publish(deny(name, rule));
    }
    let mut wrong = Vec::new();
    for (line, lines, status) in [
        ("GET /", &[][..], 200),
        ("DELETE /", &[], 403),
        ("delete /", &[], 403),
        ("DeLeTe /", &[], 403),
        ("POST /", &["X-HTTP-Method-Override: delete"], 403),
        ("POST /", &["X_Method_Override: DELETE"], 403),
        ("OPTIONS *", &[], 403),
        ("OPTIONS /x", &[], 403),
        ("OPTIONS http://web", &[], 403),
        ("options *", &[], 400),
        ("GET *", &[], 400),
        ("GET http://internal/", &[], 400),
        ("GET /", &["X-Role: user"], 200),
        ("GET /", &["X-Role: root"], 403),
        ("GET /", &["X-Role: user, root"], 403),
        ("GET /", &["X-Role: root,user"], 403),
        ("GET /", &["X-Role: user", "x-role: root"], 403),
        ("GET /", &["X_Role: root"], 403),
        ("GET /", &["X-Role: \"root\";q=1"], 403),
        ("GET /", &["Cookie: a=1; role=root"], 403),
        ("GET /", &["Cookie: a=1", "Cookie: role=root"], 403),
    ] {
        let response = client.send_bytes(VIP, HTTP1, &request(line, lines)).await;
        let came = received_lines(&mut application);
        if response.statuses() != [status] || came.is_empty() == (status == 200) {
            wrong.push(format!(
                "{line} {lines:?}: {:?}, came {came:?}",
                response.statuses()
            ));
        }
    }
    for host in [
        "internal:80",
        "Internal",
        "INTERNAL.:80",
        "internal:1",
        "internal:080",
    ] {
        let sent = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let response = client.send_bytes(VIP, HTTP1, sent.as_bytes()).await;
        if !matches!(response.statuses()[..], [400 | 403]) {
            wrong.push(format!("{host}: {:?}", response.statuses()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn limits_count_all_spellings_of_a_request_together() {
    let (world, mut application) = world().await;
    let client = world.client().await;
    let limit = LocalLimit {
        matches: vec![HttpRouteMatch {
            path: Some(HttpPathMatch::Exact("/login".into())),
            method: Some("POST".into()),
            ..HttpRouteMatch::default()
        }],
        bucket_keys: vec![LimitKey::Path, LimitKey::Method],
        requests: 1,
        per: Duration::from_secs(3600),
        burst: 1,
        buckets: 10,
    };
    let object = RateLimit {
        key: PolicyKey::from_resource_name("ns/login"),
        for_gateway: true,
        local: vec![limit],
        ..RateLimit::default()
    };
    world.publish(WaypointUpdate::Upserted(
        record_name("login"),
        WaypointRecord::from(object),
    ));
    let mut statuses = Vec::new();
    for line in [
        "POST /login",
        "POST /login",
        "POST //login",
        "POST /login;x",
        "POST /login;/x",
        "POST /%2Flogin",
        "POST /Login",
        "POST /login/",
        "POST /%256cogin",
        "POST /login%3Fx",
        "post /login",
        "Post //Login;1",
    ] {
        let response = client.send_bytes(VIP, HTTP1, &request(line, &[])).await;
        statuses.push((line, response.statuses()));
    }
    let over = |(_, statuses): &&(&str, Vec<u16>)| *statuses != [429];
    let passed: Vec<_> = statuses.iter().filter(over).collect();
    assert_eq!(passed, [&("POST /login", vec![200])]);
    assert_eq!(received_lines(&mut application).len(), 1);
    for other in ["POST /logins", "GET /login", "POST /x/login"] {
        let response = client.send_bytes(VIP, HTTP1, &request(other, &[])).await;
        assert_eq!(response.statuses(), [200], "{other}");
    }
}
