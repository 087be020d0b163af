//! Tests of the comparison of each attribute with policies.

use super::*;

fn anonymous_request() -> TestRequest {
    TestRequest {
        source: None,
        ..TestRequest::default()
    }
}

#[test]
fn source_identities_match_by_each_attribute() {
    let source = |patterns: &[&str]| {
        source_rule(HttpSource {
            principals: texts(patterns),
            ..HttpSource::default()
        })
    };
    for (pattern, expected) in [
        ("td/ns/ns/sa/sa", true),
        ("td/*", true),
        ("*/sa/sa", true),
        ("*", true),
        ("td/ns/ns/sa/other", false),
        ("spiffe://td/ns/ns/sa/sa", false),
        ("td/ns/n", false),
    ] {
        let rule = source(&[pattern]);
        assert_eq!(plainly_matches(&rule, &TestRequest::default()), expected);
        assert!(!plainly_matches(&rule, &anonymous_request()), "{pattern}");
    }
    let not = source_rule(HttpSource {
        not_principals: texts(&["td/ns/ns/sa/sa"]),
        ..HttpSource::default()
    });
    assert!(!plainly_matches(&not, &TestRequest::default()));
    assert!(plainly_matches(&not, &anonymous_request()));
    let account = |namespace: &str| ServiceAccountMatch {
        namespace: namespace.into(),
        service_account: "sa".into(),
    };
    let of = |namespace| HttpSource {
        namespaces: texts(&["n*"]),
        service_accounts: vec![account(namespace)],
        trust_domains: texts(&["td"]),
        ..HttpSource::default()
    };
    assert!(plainly_matches(
        &source_rule(of("ns")),
        &TestRequest::default()
    ));
    assert!(!plainly_matches(
        &source_rule(of("other")),
        &TestRequest::default()
    ));
    assert!(!plainly_matches(
        &source_rule(of("ns")),
        &anonymous_request()
    ));
}

#[test]
fn addresses_and_ports_match_source_and_destination() {
    let net = |text: &str| text.parse().unwrap();
    let rule = |source: &str, remote: &str, port| HttpRule {
        sources: vec![HttpSource {
            ip_blocks: vec![net(source)],
            remote_ip_blocks: vec![net(remote)],
            ..HttpSource::default()
        }],
        operations: vec![HttpOperation {
            ports: vec![port],
            ..HttpOperation::default()
        }],
        ..HttpRule::default()
    };
    let call = TestRequest {
        source_ip: "::ffff:10.0.0.1",
        ..TestRequest::default()
    };
    assert!(plainly_matches(
        &rule("10.0.0.0/24", "192.0.2.1/32", 80),
        &call
    ));
    for other in [
        rule("10.0.1.0/24", "192.0.2.1/32", 80),
        rule("10.0.0.0/24", "192.0.2.2/32", 80),
        rule("10.0.0.0/24", "192.0.2.1/32", 81),
    ] {
        assert!(!plainly_matches(&other, &call), "{other:?}");
    }
}

#[test]
fn hosts_are_compared_without_case_and_with_any_port() {
    for (pattern, host, expected) in [
        ("shop.example.com", "Shop.Example.COM:8080", true),
        ("Shop.example.com", "shop.example.com.", true),
        ("shop.example.com", "shop.example.com:", true),
        ("shop.example.com", "x@shop.example.com", true),
        ("*.example.com", "shop.EXAMPLE.com:80", true),
        ("shop.*", "SHOP.example.com:1", true),
        ("shop.example.com:80", "SHOP.example.com:80", true),
        ("shop.example.com:81", "shop.example.com:82", false),
        ("shop.example.com:81", "shop.example.com", false),
        ("shop.example.com:*", "shop.example.com:81", true),
        ("[::1]", "[::1]:80", true),
        ("[::1]:80", "[::1]:80", true),
        ("shop.example.com", "shop.example.com.evil.com", false),
        ("*", "", false),
        ("*", "a", true),
    ] {
        let rule = operation_rule(HttpOperation {
            hosts: texts(&[pattern]),
            ..HttpOperation::default()
        });
        let call = TestRequest {
            host: host.to_owned(),
            ..TestRequest::default()
        };
        assert_eq!(plainly_matches(&rule, &call), expected, "{pattern} {host}");
    }
}

#[test]
fn host_is_denied_at_the_dialed_port() {
    let rule = operation_rule(HttpOperation {
        hosts: texts(&["shop.example.com:80"]),
        ..HttpOperation::default()
    });
    for host in [
        "shop.example.com",
        "Shop.Example.com.:81",
        "shop.example.com:080",
    ] {
        let call = TestRequest {
            host: host.to_owned(),
            ..TestRequest::default()
        };
        assert!(matches(&rule, HttpAction::Deny, &call), "{host}");
        assert!(!matches(&rule, HttpAction::Allow, &call), "{host}");
    }
}

#[test]
fn methods_are_denied_in_any_case_and_allowed_exactly() {
    let call = |method: &str| TestRequest {
        method: method.to_owned(),
        ..TestRequest::default()
    };
    let replaced = |name: &str, by: &[u8]| call("POST").with_header(name, by);
    for (pattern, call, denied, allowed) in [
        ("DELETE", call("DELETE"), true, true),
        ("DELETE", call("delete"), true, false),
        ("DELETE", call("Delete"), true, false),
        ("delete", call("DELETE"), true, false),
        ("DEL*", call("dELETE"), true, false),
        ("DELETE", call("POST"), false, false),
        ("DELETE", call("DELETED"), false, false),
        ("*", call("x"), true, true),
        (
            "DELETE",
            replaced("x-http-method-override", b"DELETE"),
            true,
            false,
        ),
        (
            "DELETE",
            replaced("x_http_method_override", b" delete"),
            true,
            false,
        ),
        ("DELETE", replaced("x-http-method", b"delete"), true, false),
        (
            "DELETE",
            replaced("x-method-override", b"DELETE"),
            true,
            false,
        ),
        ("POST", replaced("x-method-override", b"POST"), true, true),
    ] {
        let any = operation_rule(HttpOperation {
            methods: texts(&[pattern]),
            ..HttpOperation::default()
        });
        let none = operation_rule(HttpOperation {
            not_methods: texts(&[pattern]),
            ..HttpOperation::default()
        });
        assert_eq!(matches(&any, HttpAction::Deny, &call), denied, "{call:?}");
        assert_eq!(matches(&any, HttpAction::Allow, &call), allowed, "{call:?}");
        assert_eq!(
            matches(&none, HttpAction::Deny, &call),
            !allowed,
            "{call:?}"
        );
        assert_eq!(
            matches(&none, HttpAction::Allow, &call),
            !denied,
            "{call:?}"
        );
    }
}

#[test]
fn paths_are_denied_in_any_reading_and_allowed_in_all() {
    let any = |patterns: &[&str]| {
        operation_rule(HttpOperation {
            paths: paths(patterns),
            ..HttpOperation::default()
        })
    };
    let none = |patterns: &[&str]| {
        operation_rule(HttpOperation {
            not_paths: paths(patterns),
            ..HttpOperation::default()
        })
    };
    for (pattern, path) in [
        ("/admin", "//admin"),
        ("/admin/*", "/admin%2Fx"),
        ("/admin", "/admin;x"),
        ("/{*}/b", "/a%2Fb"),
        ("/@me", "/%40me"),
        ("/caf\u{e9}", "/caf%C3%A9;x"),
        ("/a%20b", "/a%20b;x"),
        ("/admin", "/ADMIN"),
        ("/Admin", "/admin"),
        ("/admin", "/admin/"),
        ("/admin", "/admin;/x"),
        ("/admin", "/admin%3Fx"),
        ("/admin", "/admin%2500.css"),
        ("/admin", "/admin%20"),
        ("/admin", "/admin."),
        ("/admin", "/%2561dmin"),
        ("/*", "*"),
        ("/", "*"),
    ] {
        let call = TestRequest::path(path);
        assert!(matches(&any(&[pattern]), HttpAction::Deny, &call), "{path}");
        assert!(!matches(&any(&[pattern]), HttpAction::Allow, &call));
        assert!(!matches(&none(&[pattern]), HttpAction::Allow, &call));
        assert!(matches(&none(&[pattern]), HttpAction::Deny, &call));
    }
    for (pattern, path) in [
        ("/group%2fproject", "/group%2Fproject"),
        ("/caf\u{e9}", "/caf%C3%A9"),
        ("/a|b", "/a%7Cb"),
        ("*.css", "/a//b.css"),
        ("/a;v=1", "/a;v=1"),
        ("/a;v=1/*", "/a;v=1/b"),
        ("*;v=1", "/a;v=1"),
        ("/Api/*", "/Api/a"),
        ("/public/*", "/public/"),
        ("/public/*", "/public/a;b/c%2Fd"),
        ("/public/{**}", "/public/a%2Fd"),
        ("*", "/a;v=1"),
        ("*", "*"),
    ] {
        let call = TestRequest::path(path);
        assert!(plainly_matches(&any(&[pattern]), &call), "{path}");
        assert!(!plainly_matches(&none(&[pattern]), &call), "{path}");
    }
}

#[test]
fn a_wildcard_allows_only_paths_that_match_in_every_reading() {
    for (pattern, path) in [
        ("*.css", "/admin;x.css"),
        ("*.css", "/admin%3Fx.css"),
        ("*.css", "/admin;/x.css"),
        ("*.css", "/admin%2500.css"),
        ("/public/{*}", "/public/a%2Fb"),
    ] {
        let any = operation_rule(HttpOperation {
            paths: paths(&[pattern]),
            ..HttpOperation::default()
        });
        let none = operation_rule(HttpOperation {
            not_paths: paths(&[pattern]),
            ..HttpOperation::default()
        });
        let call = TestRequest::path(path);
        assert!(matches(&any, HttpAction::Deny, &call), "{path}");
        assert!(!matches(&any, HttpAction::Allow, &call), "{path}");
        assert!(matches(&none, HttpAction::Deny, &call), "{path}");
        assert!(!matches(&none, HttpAction::Allow, &call), "{path}");
    }
}

#[test]
fn path_override_headers_are_denied_like_the_path() {
    let admin = operation_rule(HttpOperation {
        paths: paths(&["/admin/*"]),
        ..HttpOperation::default()
    });
    for (name, value) in [
        ("x-original-url", "/admin/x?y"),
        ("x-rewrite-url", "/ADMIN;x/x"),
        ("x_original_url", "http://shop/admin/x"),
    ] {
        let call = TestRequest::path("/").with_header(name, value.as_bytes());
        assert!(matches(&admin, HttpAction::Deny, &call), "{name}");
        let call = TestRequest::path("/admin/x").with_header(name, b"/other");
        assert!(matches(&admin, HttpAction::Allow, &call), "{name}");
    }
}

#[test]
fn exceptions_must_hold_for_override_headers() {
    let public = operation_rule(HttpOperation {
        not_paths: paths(&["/public*"]),
        ..HttpOperation::default()
    });
    let safe = operation_rule(HttpOperation {
        not_methods: texts(&["GET", "POST"]),
        ..HttpOperation::default()
    });
    let own = operation_rule(HttpOperation {
        not_hosts: texts(&["own.example"]),
        ..HttpOperation::default()
    });
    let call = || TestRequest {
        method: "POST".to_owned(),
        host: "own.example".to_owned(),
        ..TestRequest::path("/public")
    };
    for rule in [&public, &safe, &own] {
        assert!(!matches(rule, HttpAction::Deny, &call()), "{rule:?}");
    }
    for (rule, name, value, is_excepted) in [
        (&public, "x-original-url", "/admin", false),
        (&public, "x_rewrite_url", "/admin", false),
        (&public, "x-original-url", "/PUBLIC/..;/admin", false),
        (&public, "x-original-url", "admin", false),
        (&public, "x-original-url", "/public/x", true),
        (&safe, "x-http-method-override", "DELETE", false),
        (&safe, "x_http_method", "delete", false),
        (&safe, "x-method-override", "\u{e9}", false),
        (&safe, "x-method-override", " POST", true),
        (&own, "x-forwarded-host", "other.example", false),
        (
            &own,
            "x-forwarded-host",
            "own.example, other.example",
            false,
        ),
        (&own, "x_forwarded_host", "other.example", false),
        (&own, "forwarded", "for=1;Host=\"other.example:80\"", false),
        (&own, "forwarded", "for=1, host=other.example", false),
        (&own, "forwarded", "for=1;host=\"OWN.example:80\"", true),
        (&own, "x-forwarded-host", "Own.Example.:80", true),
    ] {
        let call = call().with_header(name, value.as_bytes());
        let denied = matches(rule, HttpAction::Deny, &call);
        assert_eq!(denied, !is_excepted, "{name}: {value}");
    }
}

#[test]
fn host_override_headers_are_denied_like_the_host() {
    let admin = operation_rule(HttpOperation {
        hosts: texts(&["admin.example"]),
        ..HttpOperation::default()
    });
    for (name, value) in [
        ("x-forwarded-host", "admin.example"),
        ("x-forwarded-host", "a, ADMIN.example:80"),
        ("x_forwarded_host", "admin.example."),
        ("forwarded", "for=1;host=admin.example"),
        ("forwarded", "host=a, HOST=\"admin.example:1\""),
    ] {
        let call = TestRequest::default().with_header(name, value.as_bytes());
        assert!(matches(&admin, HttpAction::Deny, &call), "{name}: {value}");
        assert!(
            !matches(&admin, HttpAction::Allow, &call),
            "{name}: {value}"
        );
    }
}

#[test]
fn header_spellings_are_joined_in_every_order_to_deny() {
    let is = |value: &str| {
        condition_rule(
            HttpAttribute::Header("x-a-b".into()),
            vec![HttpValue::Text(StringMatch::Exact(value.into()))],
            vec![],
        )
    };
    let two = TestRequest::default()
        .with_header("x-a-b", b"1")
        .with_header("x-a_b", b"2");
    let three = two.clone().with_header("x_a-b", b"3");
    let four = three.clone().with_header("x_a_b", b"4");
    for joined in ["1,2", "2,1", "1, 2"] {
        assert!(matches(&is(joined), HttpAction::Deny, &two), "{joined}");
    }
    for joined in ["1,2,3", "1,3,2", "2,1,3", "2,3,1", "3,1,2", "3,2,1"] {
        assert!(matches(&is(joined), HttpAction::Deny, &three), "{joined}");
        assert!(!matches(&is(joined), HttpAction::Deny, &two), "{joined}");
    }
    // No client sends so many spellings by mistake.
    assert!(matches(&is("9"), HttpAction::Deny, &four));
    assert!(!matches(&is("9"), HttpAction::Deny, &three));
    assert!(!matches(&is("9"), HttpAction::Allow, &four));
}

#[test]
fn header_lines_are_joined_for_allow_and_single_for_deny() {
    let role = |pattern: &str| {
        condition_rule(
            HttpAttribute::Header("x-role".into()),
            vec![HttpValue::Text(StringMatch::from_pattern(pattern))],
            vec![],
        )
    };
    let one = TestRequest::default().with_header("x-role", b"user");
    assert!(plainly_matches(&role("user"), &one));
    assert!(!plainly_matches(&role("admin"), &one));
    assert!(!plainly_matches(&role("*"), &TestRequest::default()));
    assert!(plainly_matches(
        &role("*"),
        &TestRequest::default().with_header("x-role", b"")
    ));
    assert!(plainly_matches(
        &role("a*"),
        &TestRequest::default().with_header("x-role", b"a\xff")
    ));

    let two = one.clone().with_header("x-role", b"admin");
    for pattern in ["user", "admin", "user*", "*admin", "user,admin"] {
        assert!(matches(&role(pattern), HttpAction::Deny, &two), "{pattern}");
        assert!(!matches(&role(pattern), HttpAction::Allow, &two));
    }
    let same = one.with_header("x-role", b"users");
    assert!(matches(&role("user*"), HttpAction::Allow, &same));

    let not = condition_rule(
        HttpAttribute::Header("x-role".into()),
        vec![],
        vec![HttpValue::Text(StringMatch::Exact("admin".into()))],
    );
    assert!(!matches(&not, HttpAction::Allow, &two));
    assert!(matches(&not, HttpAction::Allow, &TestRequest::default()));

    for line in [
        "user, admin",
        "admin;q=1, user",
        "\"admin\"",
        " admin ,user",
    ] {
        let list = TestRequest::default().with_header("x-role", line.as_bytes());
        assert!(matches(&role("admin"), HttpAction::Deny, &list), "{line}");
        assert!(!matches(&role("admin"), HttpAction::Allow, &list), "{line}");
        assert!(!matches(&not, HttpAction::Allow, &list), "{line}");
        // A wildcard matches no other element.
        assert!(!matches(&role("user*"), HttpAction::Allow, &list), "{line}");
        assert!(!matches(&role("*user"), HttpAction::Allow, &list), "{line}");
    }
    let spelt = TestRequest::default().with_header("X_Role", b"admin");
    assert!(matches(&role("admin"), HttpAction::Deny, &spelt));
    assert!(!matches(&role("admin"), HttpAction::Allow, &spelt));
    let both = spelt.with_header("x-role", b"user");
    assert!(!matches(&role("user"), HttpAction::Allow, &both));
    let agent = condition_rule(
        HttpAttribute::Header("user-agent".into()),
        vec![HttpValue::Text(StringMatch::Prefix("Mozilla/".into()))],
        vec![],
    );
    let browser =
        TestRequest::default().with_header("user-agent", b"Mozilla/5.0 (KHTML, like Gecko)");
    assert!(plainly_matches(&agent, &browser));

    let cookie = condition_rule(
        HttpAttribute::Header("cookie".into()),
        vec![HttpValue::Text(StringMatch::Prefix("a=1; b".into()))],
        vec![],
    );
    let crumbs = TestRequest::default()
        .with_header("cookie", b"a=1")
        .with_header("cookie", b"b=2");
    assert!(plainly_matches(&cookie, &crumbs));
}

#[test]
fn conditions_compare_their_attributes() {
    let text = |text: &str| HttpValue::Text(StringMatch::from_pattern(text));
    let net = |text: &str| HttpValue::Net(text.parse().unwrap());
    use HttpAttribute::*;
    for (attribute, matching, other) in [
        (SourceIp, net("10.0.0.1/32"), net("10.0.0.2/32")),
        (RemoteIp, net("192.0.2.0/24"), net("10.0.0.0/8")),
        (SourceNamespace, text("n*"), text("n")),
        (SourceServiceAccount, text("ns/sa"), text("sa")),
        (SourceServiceAccount, text("*/sa"), text("ns/s")),
        (SourceTrustDomain, text("td"), text("other")),
        (SourcePrincipal, text("td/ns/ns/sa/sa"), text("td")),
        (DestinationIp, net("10.96.0.9/32"), net("10.96.0.10/32")),
        (DestinationPort, HttpValue::Port(80), HttpValue::Port(81)),
        (ConnectionSni, text("WWW.example.com"), text("example.com")),
        (Header(":authority".into()), text("SHOP*"), text("example")),
        (Header(":method".into()), text("GET"), text("POST")),
    ] {
        let call = TestRequest {
            sni: Some("www.EXAMPLE.com"),
            ..TestRequest::default()
        };
        for (value, expected) in [(matching, true), (other, false)] {
            let any = condition_rule(attribute.clone(), vec![value.clone()], vec![]);
            let none = condition_rule(attribute.clone(), vec![], vec![value]);
            assert_eq!(plainly_matches(&any, &call), expected, "{any:?}");
            assert_eq!(plainly_matches(&none, &call), !expected, "{none:?}");
        }
    }
    let sni = condition_rule(ConnectionSni, vec![text("*")], vec![]);
    assert!(!plainly_matches(&sni, &TestRequest::default()));
}

#[test]
fn a_rule_needs_a_source_an_operation_and_all_conditions() {
    let namespace = |name: &str| HttpSource {
        namespaces: texts(&[name]),
        ..HttpSource::default()
    };
    let method = |name: &str| HttpOperation {
        methods: texts(&[name]),
        ..HttpOperation::default()
    };
    let port = |port| HttpCondition {
        attribute: HttpAttribute::DestinationPort,
        values: vec![HttpValue::Port(port)],
        not_values: vec![],
    };
    let rule = HttpRule {
        sources: vec![namespace("other"), namespace("ns")],
        operations: vec![method("PUT"), method("GET")],
        conditions: vec![port(80), port(80)],
    };
    assert!(plainly_matches(&rule, &TestRequest::default()));
    for changed in [
        HttpRule {
            sources: vec![namespace("other")],
            ..rule.clone()
        },
        HttpRule {
            operations: vec![method("PUT")],
            ..rule.clone()
        },
        HttpRule {
            conditions: vec![port(80), port(81)],
            ..rule
        },
    ] {
        assert!(
            !plainly_matches(&changed, &TestRequest::default()),
            "{changed:?}"
        );
    }
    assert!(plainly_matches(
        &HttpRule::default(),
        &TestRequest::default()
    ));
    assert!(plainly_matches(
        &source_rule(HttpSource::default()),
        &TestRequest::default()
    ));
}
