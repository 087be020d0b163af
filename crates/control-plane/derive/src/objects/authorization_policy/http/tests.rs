//! Tests of the conversion of AuthorizationPolicies to waypoint policies.

use ambit_model::ServiceAccountMatch;
use serde_json::{Value, json};

use super::*;

fn policy(spec: Value) -> AuthorizationPolicy {
    serde_json::from_value(json!({
        "apiVersion": "security.istio.io/v1",
        "kind": "AuthorizationPolicy",
        "metadata": { "name": "p", "namespace": "shop" },
        "spec": spec,
    }))
    .unwrap()
}

fn parse_policy(spec: Value) -> (HttpPolicy, Vec<String>) {
    let (policy, notes) = http_policy(&policy(spec)).unwrap();
    (policy, notes.iter().map(ToString::to_string).collect())
}

fn parse_error(spec: Value) -> String {
    http_policy(&policy(spec)).unwrap_err().to_string()
}

fn parse_rule(spec: Value) -> HttpRule {
    let (policy, notes) = parse_policy(json!({ "rules": [spec] }));
    assert_eq!(notes, [""; 0]);
    policy.rules.into_iter().next().unwrap()
}

fn string_matches(patterns: &[&str]) -> Vec<StringMatch> {
    patterns
        .iter()
        .map(|text| StringMatch::from_pattern(text))
        .collect()
}

#[test]
fn names_actions_and_empty_rules_are_kept() {
    for (action, expected) in [
        ("ALLOW", HttpAction::Allow),
        ("DENY", HttpAction::Deny),
        ("AUDIT", HttpAction::Audit),
    ] {
        let (policy, notes) = parse_policy(json!({ "action": action, "rules": [{}] }));
        assert_eq!(policy.key.to_string(), "shop/p");
        assert_eq!((policy.action, notes.len()), (expected, 0));
        assert_eq!(policy.rules, [HttpRule::default()]);
        assert!(!policy.dry_run && policy.not_understood.is_none());
    }
    assert_eq!(parse_policy(json!({})).0.rules, []);
}

#[test]
fn sources() {
    let source = json!({
        "principals": ["td/ns/a/sa/b", "*"],
        "notPrincipals": ["td/*"],
        "namespaces": ["a"],
        "notNamespaces": ["b"],
        "serviceAccounts": ["a/b", "c"],
        "notServiceAccounts": ["d"],
        "trustDomains": ["*.local"],
        "notTrustDomains": ["evil"],
        "ipBlocks": ["10.0.0.1", "10.0.1.7/24"],
        "notIpBlocks": ["::ffff:10.0.0.1"],
        "remoteIpBlocks": ["2001:db8::/32"],
        "notRemoteIpBlocks": ["192.0.2.1"],
    });
    let read = parse_rule(json!({ "from": [{ "source": source }] }));
    let account = |namespace: &str, name: &str| ServiceAccountMatch {
        namespace: namespace.into(),
        service_account: name.into(),
    };
    let net = |text: &str| text.parse().unwrap();
    assert_eq!(
        read.sources,
        [HttpSource {
            principals: string_matches(&["td/ns/a/sa/b", "*"]),
            not_principals: string_matches(&["td/*"]),
            namespaces: string_matches(&["a"]),
            not_namespaces: string_matches(&["b"]),
            service_accounts: vec![account("a", "b"), account("shop", "c")],
            not_service_accounts: vec![account("shop", "d")],
            trust_domains: string_matches(&["*.local"]),
            not_trust_domains: string_matches(&["evil"]),
            ip_blocks: vec![net("10.0.0.1/32"), net("10.0.1.0/24")],
            not_ip_blocks: vec![net("10.0.0.1/32")],
            remote_ip_blocks: vec![net("2001:db8::/32")],
            not_remote_ip_blocks: vec![net("192.0.2.1/32")],
            request_principals: Vec::new(),
            not_request_principals: Vec::new(),
        }]
    );
}

#[test]
fn operations() {
    let operation = json!({
        "hosts": ["*.example.com"],
        "notHosts": ["a.example.com"],
        "ports": ["80"],
        "notPorts": ["81"],
        "methods": ["GET"],
        "notMethods": ["PUT"],
        "paths": ["/a/*", "/b/{*}/c", "*.css"],
        "notPaths": ["/d/{**}"],
    });
    let read = parse_rule(json!({ "to": [{ "operation": operation }] }));
    let text = |text| PathPattern::Text(StringMatch::from_pattern(text));
    let template = |text: &str| PathPattern::Template(text.into());
    assert_eq!(
        read.operations,
        [HttpOperation {
            hosts: string_matches(&["*.example.com"]),
            not_hosts: string_matches(&["a.example.com"]),
            ports: vec![80],
            not_ports: vec![81],
            methods: string_matches(&["GET"]),
            not_methods: string_matches(&["PUT"]),
            paths: vec![text("/a/*"), template("/b/{*}/c"), text("*.css")],
            not_paths: vec![template("/d/{**}")],
        }]
    );
}

#[test]
fn conditions() {
    use HttpAttribute as A;
    let text = |text| HttpValue::Text(StringMatch::from_pattern(text));
    let net = |text: &str| HttpValue::Net(text.parse().unwrap());
    for (key, value, attribute, expected) in [
        (
            "request.headers[X-Role]",
            "a*",
            A::Header("x-role".into()),
            text("a*"),
        ),
        (
            "request.headers[:authority]",
            "a",
            A::Header(":authority".into()),
            text("a"),
        ),
        ("source.ip", "10.0.0.1", A::SourceIp, net("10.0.0.1/32")),
        ("remote.ip", "10.0.0.0/8", A::RemoteIp, net("10.0.0.0/8")),
        ("source.namespace", "a", A::SourceNamespace, text("a")),
        (
            "source.serviceAccount",
            "a",
            A::SourceServiceAccount,
            text("shop/a"),
        ),
        ("source.trustDomain", "td", A::SourceTrustDomain, text("td")),
        ("source.principal", "*", A::SourcePrincipal, text("*")),
        ("destination.ip", "::1", A::DestinationIp, net("::1/128")),
        (
            "destination.port",
            "80",
            A::DestinationPort,
            HttpValue::Port(80),
        ),
        ("connection.sni", "*.com", A::ConnectionSni, text("*.com")),
    ] {
        for (values, not_values) in [(vec![value], vec![]), (vec![], vec![value])] {
            let when = json!({ "key": key, "values": values, "notValues": not_values });
            let read = parse_rule(json!({ "when": [when] }));
            let of = |given: Vec<&str>| given.iter().map(|_| expected.clone()).collect();
            let expected = HttpCondition {
                attribute: attribute.clone(),
                values: of(values),
                not_values: of(not_values),
            };
            assert_eq!(read.conditions, [expected]);
        }
    }
}

#[test]
fn what_is_not_supported_denies_what_it_might_concern() {
    let not_supported =
        [json!({ "when": [{ "key": "experimental.envoy.filters.x", "notValues": ["b"] }] })];
    for spec in not_supported {
        let (allow, notes) = parse_policy(json!({ "rules": [spec, {}] }));
        assert_eq!(allow.rules, [HttpRule::default()]);
        assert!(
            notes[0].contains("not supported: this rule allows nothing"),
            "{notes:?}"
        );
        let (deny, notes) = parse_policy(json!({ "action": "DENY", "rules": [spec] }));
        assert_eq!(notes.len(), 1);
        // Of every caller, under all conditions.
        let anybody = deny.rules[0]
            .sources
            .iter()
            .all(|s| *s == HttpSource::default());
        assert!(anybody && deny.rules[0].conditions.is_empty());
    }
    let mixed = json!({
        "from": [{ "source": { "namespaces": ["a"] } }],
        "to": [{ "operation": { "paths": ["/admin"] } }],
        "when": [{ "key": "experimental.x", "values": ["b"] }],
    });
    let (deny, _) = parse_policy(json!({ "action": "DENY", "rules": [mixed] }));
    assert_eq!(deny.rules[0].sources[0].namespaces, string_matches(&["a"]));
    assert_eq!(deny.rules[0].operations.len(), 1);
}

#[test]
fn tokens_are_required_by_principal_and_claims() {
    let (policy, notes) = parse_policy(json!({ "rules": [{
        "from": [{ "source": {
            "requestPrincipals": ["https://i/*"], "notRequestPrincipals": ["https://i/mallory"],
        } }],
        "when": [
            { "key": "request.auth.principal", "values": ["*"] },
            { "key": "request.auth.audiences", "values": ["a"] },
            { "key": "request.auth.presenter", "notValues": ["b"] },
            { "key": "request.auth.claims[realm][roles.x]", "values": ["admin"] },
        ],
    }] }));
    assert_eq!(notes, [] as [String; 0]);
    let source = &policy.rules[0].sources[0];
    assert_eq!(source.request_principals, string_matches(&["https://i/*"]));
    assert_eq!(
        source.not_request_principals,
        string_matches(&["https://i/mallory"])
    );
    let attributes = policy.rules[0]
        .conditions
        .iter()
        .map(|one| one.attribute.clone());
    assert_eq!(
        attributes.collect::<Vec<_>>(),
        [
            HttpAttribute::RequestPrincipal,
            HttpAttribute::RequestAudiences,
            HttpAttribute::RequestPresenter,
            HttpAttribute::RequestClaim(vec!["realm".into(), "roles.x".into()]),
        ]
    );
    for key in [
        "request.auth.claims[]",
        "request.auth.claims[a",
        "request.auth.claims[a]b]",
        "request.auth.claims[a][]",
        "request.auth.claims",
        "request.auth.other",
    ] {
        let spec = json!({ "rules": [{ "when": [{ "key": key, "values": ["b"] }] }] });
        assert!(http_policy(&super::tests::policy(spec)).is_err(), "{key}");
    }
}

#[test]
fn only_custom_policies_name_providers() {
    let to = json!({ "to": [{ "operation": { "paths": ["/admin"] } }] });
    let asks = json!({ "action": "CUSTOM", "provider": { "name": "x" }, "rules": [to] });
    let (read, notes) = parse_policy(asks.clone());
    assert_eq!((read.action, read.rules.len()), (HttpAction::Custom, 1));
    assert!(notes.is_empty(), "{notes:?}");
    assert_eq!(provider(&policy(asks)), Ok(Some("x".into())));
    assert_eq!(provider(&policy(json!({}))), Ok(None));
    for bad in [
        json!({ "action": "CUSTOM" }),
        json!({ "action": "CUSTOM", "provider": { "name": "" } }),
        json!({ "action": "DENY", "provider": { "name": "x" } }),
    ] {
        assert!(provider(&policy(bad.clone())).is_err(), "{bad}");
    }
}

#[test]
fn dry_run_is_set_by_its_annotation() {
    let annotated = |value: &str| {
        let mut policy = policy(json!({ "rules": [{}] }));
        let annotations = policy.metadata.annotations.get_or_insert_default();
        annotations.insert("istio.io/dry-run".to_owned(), value.to_owned());
        http_policy(&policy)
    };
    assert!(annotated("true").unwrap().0.dry_run);
    assert!(!annotated("false").unwrap().0.dry_run);
    assert!(annotated("maybe").is_err());
}

#[test]
fn a_bad_value_is_an_error_that_names_its_place() {
    let of_operation =
        |operation: Value| json!({ "rules": [{}, { "to": [{ "operation": operation }] }] });
    let of_source = |source: Value| json!({ "rules": [{ "from": [{ "source": source }] }] });
    let of_condition = |when: Value| json!({ "rules": [{ "when": [when] }] });
    for (spec, place) in [
        (
            of_operation(json!({ "ports": ["80", "x"] })),
            "spec.rules[1].to[0].operation.ports[1]",
        ),
        (
            of_operation(json!({ "paths": ["/a{*}"] })),
            "spec.rules[1].to[0].operation.paths[0]",
        ),
        (
            of_operation(json!({ "methods": [""] })),
            "spec.rules[1].to[0].operation.methods[0]",
        ),
        (of_operation(json!({})), "spec.rules[1].to[0].operation"),
        (
            of_source(json!({ "ipBlocks": ["10.0.0.0/33"] })),
            "spec.rules[0].from[0].source.ipBlocks[0]",
        ),
        (
            of_source(json!({ "remoteIpBlocks": ["a"] })),
            "spec.rules[0].from[0].source.remoteIpBlocks[0]",
        ),
        (
            of_source(json!({ "serviceAccounts": ["a/b/c"] })),
            "spec.rules[0].from[0].source.serviceAccounts[0]",
        ),
        (of_source(json!({})), "spec.rules[0].from[0].source"),
        (
            of_condition(json!({ "key": "request.headers[a b]", "values": ["c"] })),
            "spec.rules[0].when[0].key",
        ),
        (
            of_condition(json!({ "key": "request.headers[:path]", "values": ["c"] })),
            "spec.rules[0].when[0].key",
        ),
        (
            of_condition(json!({ "key": "request.headers", "values": ["c"] })),
            "spec.rules[0].when[0].key",
        ),
        (
            of_condition(json!({ "key": "source.ip", "notValues": ["c"] })),
            "spec.rules[0].when[0].notValues[0]",
        ),
        (
            of_condition(json!({ "key": "source.ip" })),
            "spec.rules[0].when[0]",
        ),
    ] {
        let error = parse_error(spec);
        assert!(error.starts_with(&format!("{place}: ")), "{place}: {error}");
    }
}

#[test]
fn what_matches_less_than_it_seems_is_noted() {
    for (operation, place) in [
        (json!({ "paths": ["admin"] }), "paths[0]"),
        (json!({ "paths": ["/a?b"] }), "paths[0]"),
        (json!({ "paths": ["/a/*/b"] }), "paths[0]"),
        (json!({ "methods": ["GET", "get"] }), "methods[1]"),
        (json!({ "notHosts": ["a.*.com"] }), "notHosts[0]"),
    ] {
        let (policy, notes) =
            parse_policy(json!({ "rules": [{ "to": [{ "operation": operation }] }] }));
        assert_eq!(policy.rules.len(), 1);
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].contains(place), "{notes:?}");
    }
    let from = json!({ "from": [{ "source": { "principals": ["spiffe://td/ns/a/sa/b"] } }] });
    assert_eq!(parse_policy(json!({ "rules": [from] })).1.len(), 1);
}

#[test]
fn a_substitute_denies_everything() {
    let substitute = substitute(&policy(json!({})), "why");
    assert_eq!(substitute.key.to_string(), "shop/p");
    assert_eq!(substitute.action, HttpAction::Deny);
    assert_eq!(substitute.not_understood.as_deref(), Some("why"));
}
