//! Fuzzes the normalization of request targets. The first byte of the input selects the normalization.
#![no_main]

use ambit_l7::{
    authz::{Connection, Policies, Request, Scope},
    path::{normalize, path_readings},
    route::{RouteDecision, RouteRequest, RouteTable},
};
use ambit_model::{
    HttpAction, HttpOperation, HttpPathMatch, HttpPolicy, HttpRoute, HttpRouteMatch, HttpRouteRule,
    HttpRule, PathNormalization, PathPattern, StringMatch,
};
use http::{HeaderMap, uri::PathAndQuery};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((mode, target)) = data.split_first() else {
        return;
    };
    let Ok(target) = std::str::from_utf8(target) else {
        return;
    };
    let mode = match mode % 4 {
        0 => PathNormalization::Base,
        1 => PathNormalization::MergeSlashes,
        2 => PathNormalization::DecodeAndMergeSlashes,
        _ => PathNormalization::None,
    };
    let Ok(normal) = normalize(target, mode) else {
        return;
    };
    let again = normalize(normal.as_str(), mode).expect("what is normal is accepted");
    assert_eq!(again.as_str(), normal.as_str());
    assert!(!again.was_changed());
    assert_eq!(
        normal.query(),
        target.split_once('?').map(|(_, query)| query)
    );

    // The forwarded path is the one that policies evaluate.
    if let Ok(forwarded) = PathAndQuery::try_from(normal.as_str()) {
        assert_eq!(forwarded.path(), normal.path());
        assert_eq!(forwarded.query(), normal.query());
    }
    let path = normal.path();
    for (policy, route) in [
        (
            StringMatch::Exact(path.into()),
            HttpPathMatch::Exact(path.into()),
        ),
        (
            StringMatch::Prefix("/admin/".into()),
            HttpPathMatch::Prefix("/admin".into()),
        ),
    ] {
        // With normalization, a policy allows exactly the paths that a route with the same text matches.
        if mode != PathNormalization::None && allows(policy, path) {
            assert!(routes(route, path), "{path}");
        }
    }
    let admin = StringMatch::Exact("/admin".into());
    if path == "/admin" || path_readings(path).iter().any(|one| one == "/admin") {
        assert!(!is_allowed(HttpAction::Deny, admin, path), "{path}");
    }
});

fn allows(text: StringMatch, path: &str) -> bool {
    is_allowed(HttpAction::Allow, text, path)
}

fn is_allowed(action: HttpAction, text: StringMatch, path: &str) -> bool {
    let mut policies = Policies::default();
    let operation = HttpOperation {
        paths: vec![PathPattern::Text(text)],
        ..HttpOperation::default()
    };
    policies.insert(HttpPolicy {
        for_gateway: true,
        action,
        rules: vec![HttpRule {
            operations: vec![operation],
            ..HttpRule::default()
        }],
        ..HttpPolicy::default()
    });
    let request = Request {
        connection: Connection {
            source: None,
            source_ip: [10, 0, 0, 1].into(),
            remote_ip: [10, 0, 0, 1].into(),
            destination: ([10, 0, 0, 2], 80).into(),
            sni: None,
        },
        method: "GET",
        host: "a",
        path,
        headers: &HeaderMap::new(),
        claims: None,
    };
    policies.evaluate(Scope::Pod(&[]), &request).is_allowed()
}

fn routes(path_match: HttpPathMatch, path: &str) -> bool {
    let rule = HttpRouteRule {
        matches: vec![HttpRouteMatch {
            path: Some(path_match),
            ..HttpRouteMatch::default()
        }],
        ..HttpRouteRule::default()
    };
    let route = HttpRoute {
        rules: vec![rule],
        ..HttpRoute::default()
    };
    let request = RouteRequest {
        method: "GET",
        path,
        query: None,
        host: "",
        headers: &HeaderMap::new(),
    };
    matches!(
        RouteTable::new(&[route], 80, None).select_rule(&request),
        RouteDecision::Rule(..)
    )
}
