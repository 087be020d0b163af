//! Tests of the order and the scopes of policies, and of their reported decisions.

use super::*;

fn service(name: &str) -> NamespacedHostname {
    NamespacedHostname {
        namespace: "ns".into(),
        hostname: name.into(),
    }
}

fn method_rule(name: &str) -> HttpRule {
    operation_rule(HttpOperation {
        methods: texts(&[name]),
        ..HttpOperation::default()
    })
}

fn for_services(policy: HttpPolicy, services: &[&str]) -> HttpPolicy {
    HttpPolicy {
        for_gateway: false,
        services: services.iter().map(|name| service(name)).collect(),
        ..policy
    }
}

fn decide(policies: &Policies, scope: Scope<'_>) -> HttpDecision {
    policies.evaluate(scope, &TestRequest::default().request())
}

fn rule_id(name: &str, rule: usize) -> RuleId {
    RuleId::new(&key(name), rule)
}

#[test]
fn without_policies_everything_is_allowed() {
    let decision = decide(&Policies::default(), Scope::Pod(&[]));
    assert_eq!(decision.reason, DecisionReason::NoAllowPolicies);
    assert!(decision.is_allowed() && decision.response_code_details().is_none());
    assert!(!Policies::default().needs_http(Scope::Pod(&[])));
}

#[test]
fn deny_counts_before_allow() {
    let allow = policy("a", HttpAction::Allow, vec![HttpRule::default()]);
    let deny = policy(
        "d",
        HttpAction::Deny,
        vec![method_rule("PUT"), method_rule("GET")],
    );
    let decision = decide(&policies([allow.clone()]), Scope::Pod(&[]));
    assert_eq!(
        decision.reason,
        DecisionReason::AllowedByRule(rule_id("a", 0))
    );
    assert_eq!(decision.to_string(), "allowed by rule 0 of policy ns/a");
    let decision = decide(&policies([allow, deny]), Scope::Pod(&[]));
    assert_eq!(
        decision.reason,
        DecisionReason::DeniedByRule(rule_id("d", 1))
    );
    assert_eq!(
        decision.response_code_details().as_deref(),
        Some("rbac_access_denied_matched_policy[ns[ns]-policy[d]-rule[1]]")
    );
}

#[test]
fn policies_without_rules_never_match() {
    let allow = decide(
        &policies([policy("a", HttpAction::Allow, vec![])]),
        Scope::Pod(&[]),
    );
    assert_eq!(allow.reason, DecisionReason::NoAllowPolicyMatched);
    assert_eq!(
        allow.response_code_details().as_deref(),
        Some("rbac_access_denied_matched_policy[none]")
    );
    let deny = decide(
        &policies([policy("d", HttpAction::Deny, vec![])]),
        Scope::Pod(&[]),
    );
    assert_eq!(deny.reason, DecisionReason::NoAllowPolicies);
}

#[test]
fn policies_of_services_apply_to_their_requests_only() {
    let deny = policy("d", HttpAction::Deny, vec![HttpRule::default()]);
    let allow = policy("a", HttpAction::Allow, vec![HttpRule::default()]);
    let (a, b, c) = (service("a"), service("b"), service("c"));
    let policies = policies([for_services(deny, &["a", "b"]), allow]);
    for denied in [&a, &b] {
        let decision = decide(&policies, Scope::Service(denied));
        assert_eq!(
            decision.reason,
            DecisionReason::DeniedByRule(rule_id("d", 0))
        );
    }
    for allowed in [Scope::Service(&c), Scope::Pod(&[])] {
        let decision = decide(&policies, allowed);
        assert_eq!(
            decision.reason,
            DecisionReason::AllowedByRule(rule_id("a", 0))
        );
    }
}

#[test]
fn policy_not_understood_denies_its_targets() {
    let odd = HttpPolicy {
        not_understood: Some("field 99 is unknown".into()),
        ..policy("odd", HttpAction::Allow, vec![HttpRule::default()])
    };
    let bad_template = operation_rule(HttpOperation {
        paths: vec![PathPattern::Template("/a{*}".into())],
        ..HttpOperation::default()
    });
    let bad_value = condition_rule(HttpAttribute::SourceIp, vec![HttpValue::Port(1)], vec![]);
    let bad_header = condition_rule(
        HttpAttribute::Header("a b".into()),
        vec![HttpValue::Text(StringMatch::Presence)],
        vec![],
    );
    let with = |rule| policy("odd", HttpAction::Allow, vec![HttpRule::default(), rule]);
    for odd in [odd, with(bad_template), with(bad_value), with(bad_header)] {
        let decision = decide(&policies([odd.clone()]), Scope::Pod(&[]));
        assert!(
            matches!(&decision.reason, DecisionReason::InvalidPolicy { policy, .. } if *policy == key("odd"))
        );
        assert!(decision.to_string().contains("not understood"));
        let elsewhere = for_services(odd.clone(), &["a"]);
        let scope = service("b");
        let others = policies([elsewhere]);
        assert!(decide(&others, Scope::Service(&scope)).is_allowed());
        let dry = HttpPolicy {
            dry_run: true,
            ..odd
        };
        let decision = decide(&policies([dry]), Scope::Pod(&[]));
        assert!(decision.is_allowed() && !decision.dry_run_denials.is_empty());
    }
}

#[test]
fn dry_run_policies_report_what_they_would_deny() {
    let dry = |name, action, rule| HttpPolicy {
        dry_run: true,
        ..policy(name, action, vec![rule])
    };
    let deny = dry("d", HttpAction::Deny, method_rule("GET"));
    let allow = dry("a", HttpAction::Allow, method_rule("PUT"));
    let decision = decide(&policies([deny, allow.clone()]), Scope::Pod(&[]));
    assert!(decision.is_allowed());
    assert_eq!(
        decision.dry_run_denials,
        [
            DryRunDenial::new(&key("d"), Some(0)),
            DryRunDenial::new(&key("a"), None)
        ]
    );
    // Another ALLOW policy would still allow the request, enforced or not.
    for other in [
        dry("b", HttpAction::Allow, method_rule("GET")),
        policy("b", HttpAction::Allow, vec![method_rule("GET")]),
    ] {
        let decision = decide(&policies([allow.clone(), other]), Scope::Pod(&[]));
        assert!(decision.is_allowed() && decision.dry_run_denials.is_empty());
    }
}

#[test]
fn audit_policies_only_report() {
    let audit = policy("audit", HttpAction::Audit, vec![method_rule("GET")]);
    let other = policy("other", HttpAction::Audit, vec![method_rule("PUT")]);
    let decision = decide(&policies([audit, other]), Scope::Pod(&[]));
    assert_eq!(decision.reason, DecisionReason::NoAllowPolicies);
    assert_eq!(decision.matched_audit_rules, [rule_id("audit", 0)]);
}

#[test]
fn a_policy_that_names_a_service_twice_applies_once() {
    let audit = policy("audit", HttpAction::Audit, vec![method_rule("GET")]);
    let mut policies = policies([for_services(audit, &["a", "a"])]);
    let a = service("a");
    assert_eq!(
        decide(&policies, Scope::Service(&a))
            .matched_audit_rules
            .len(),
        1
    );
    policies.remove(&key("audit"));
    assert_eq!(
        decide(&policies, Scope::Service(&a))
            .matched_audit_rules
            .len(),
        0
    );
}

#[test]
fn non_http_connections_never_match_http_allow_rules() {
    let namespace = |name: &str| HttpSource {
        namespaces: texts(&[name]),
        ..HttpSource::default()
    };
    let decide = |action, rule: HttpRule| {
        let policies = policies([policy("p", action, vec![rule])]);
        let call = TestRequest::default();
        policies.evaluate_connection(Scope::Pod(&[]), &call.connection())
    };
    let header = condition_rule(
        HttpAttribute::Header("a".into()),
        vec![HttpValue::Text(StringMatch::Presence)],
        vec![],
    );
    let host = operation_rule(HttpOperation {
        not_hosts: texts(&["a"]),
        ..HttpOperation::default()
    });
    let path = operation_rule(HttpOperation {
        ports: vec![80],
        paths: paths(&["/a"]),
        ..HttpOperation::default()
    });
    for http in [header, host, path, method_rule("GET")] {
        let allow = decide(HttpAction::Allow, http.clone());
        assert_eq!(allow.reason, DecisionReason::NoAllowPolicyMatched);
        let of = |name| HttpRule {
            sources: vec![namespace(name)],
            ..http.clone()
        };
        assert!(!decide(HttpAction::Deny, of("ns")).is_allowed());
        assert!(decide(HttpAction::Deny, of("other")).is_allowed());
        assert_eq!(
            decide(HttpAction::Audit, of("ns"))
                .matched_audit_rules
                .len(),
            1
        );
        let policies = policies([policy("p", HttpAction::Deny, vec![http.clone()])]);
        assert!(policies.needs_http(Scope::Pod(&[])));
    }
    let other_port = operation_rule(HttpOperation {
        ports: vec![81],
        methods: texts(&["GET"]),
        ..HttpOperation::default()
    });
    assert!(decide(HttpAction::Deny, other_port).is_allowed());
    assert!(decide(HttpAction::Allow, source_rule(namespace("ns"))).is_allowed());
}

#[test]
fn policies_are_added_changed_and_removed() {
    let mut policies = Policies::default();
    let deny = policy("p", HttpAction::Deny, vec![HttpRule::default()]);
    assert!(policies.insert(deny.clone()));
    assert!(!policies.insert(deny.clone()));
    assert!(!decide(&policies, Scope::Pod(&[])).is_allowed());
    let a = service("a");
    assert!(policies.insert(for_services(deny.clone(), &["a"])));
    assert!(decide(&policies, Scope::Pod(&[])).is_allowed());
    assert!(!decide(&policies, Scope::Service(&a)).is_allowed());
    assert!(policies.insert(for_services(deny, &["b"])));
    assert!(decide(&policies, Scope::Service(&a)).is_allowed());
    assert_eq!(policies.iter().count(), 1);
    let copy = policies.clone();
    assert!(policies.remove(&key("p")));
    assert!(!policies.remove(&key("p")));
    assert!(policies.service_policies.is_empty() && policies.iter().next().is_none());
    let b = service("b");
    assert!(decide(&policies, Scope::Service(&b)).is_allowed());
    assert!(!decide(&copy, Scope::Service(&b)).is_allowed());
}

#[test]
fn backend_has_its_own_policies_and_those_of_the_whole_waypoint() {
    let (a, b) = (service("a"), service("b"));
    let of = |rules, action, name: &str| policy(name, action, rules);
    let (get, put) = (vec![method_rule("GET")], vec![method_rule("PUT")]);
    // Denials of the whole waypoint apply to the original request.
    let gateway = of(get.clone(), HttpAction::Deny, "gateway");
    let own = for_services(of(get.clone(), HttpAction::Deny, "own"), &["a"]);
    let all = policies([gateway, own]);
    assert_eq!(
        decide(&all, Scope::Backend(&a)).reason,
        DecisionReason::DeniedByRule(rule_id("own", 0))
    );
    assert!(decide(&all, Scope::Backend(&b)).is_allowed());
    assert!(all.has_service_policies(&a) && !all.has_service_policies(&b));
    // Where the service has ALLOW policies, one of them or of the whole waypoint must match.
    let needed = for_services(of(put.clone(), HttpAction::Allow, "needed"), &["a"]);
    let elsewhere = of(put, HttpAction::Allow, "elsewhere");
    let admits = of(get, HttpAction::Allow, "admits");
    let of_backend = |all: &[&HttpPolicy], service| {
        let all = policies(all.iter().copied().cloned());
        decide(&all, Scope::Backend(service)).reason
    };
    assert_eq!(
        of_backend(&[&needed], &a),
        DecisionReason::NoAllowPolicyMatched
    );
    assert_eq!(
        of_backend(&[&needed, &elsewhere], &a),
        DecisionReason::NoAllowPolicyMatched
    );
    assert_eq!(
        of_backend(&[&needed, &admits], &a),
        DecisionReason::AllowedByRule(rule_id("admits", 0))
    );
    assert!(
        matches!(
            of_backend(&[&elsewhere], &b),
            DecisionReason::NoAllowPolicies
        ),
        "the whole waypoint's admission has been asked for"
    );
    // Only policies of the service: audits and dry runs of the whole waypoint have been reported
    // for the original request.
    let audit = of(vec![HttpRule::default()], HttpAction::Audit, "audit");
    let own_audit = for_services(
        of(vec![HttpRule::default()], HttpAction::Audit, "own-audit"),
        &["a"],
    );
    let reported = decide(&policies([audit, own_audit]), Scope::Backend(&a)).matched_audit_rules;
    assert_eq!(reported, [rule_id("own-audit", 0)]);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table is as long as it is")]
fn each_service_of_a_pod_has_to_allow_a_request_to_it() {
    let port = |name: &str, port: u16| ServicePort {
        service: service(name),
        address: ([10, 96, 0, 1], port).into(),
    };
    let at_port = |port: u16| {
        operation_rule(HttpOperation {
            ports: vec![port],
            ..HttpOperation::default()
        })
    };
    let host = |host: &str| {
        operation_rule(HttpOperation {
            hosts: texts(&[host]),
            ..HttpOperation::default()
        })
    };
    let any = || vec![HttpRule::default()];
    let of = |policy: HttpPolicy, name: &str| for_services(policy, &[name]);
    let allow = |name: &str, rules| policy(name, HttpAction::Allow, rules);
    let deny = |name: &str, rules| policy(name, HttpAction::Deny, rules);
    let (get, put) = (|| vec![method_rule("GET")], || vec![method_rule("PUT")]);
    let ab = [port("a", 80), port("b", 81)];
    // The request is a GET to port 80 of the pod.
    let cases: [(&str, Vec<HttpPolicy>, &[ServicePort], bool); 18] = [
        ("nothing is attached", vec![], &ab, true),
        (
            "one of several denies",
            vec![of(deny("d", any()), "b")],
            &ab,
            false,
        ),
        (
            "another service denies",
            vec![of(deny("d", any()), "c")],
            &ab,
            true,
        ),
        (
            "no service leads there",
            vec![of(deny("d", any()), "a")],
            &[],
            true,
        ),
        (
            "the only ALLOW matches",
            vec![of(allow("x", get()), "a")],
            &ab,
            true,
        ),
        (
            "the only ALLOW does not",
            vec![of(allow("x", put()), "a")],
            &ab,
            false,
        ),
        (
            "the ALLOW of another service is none of its own",
            vec![of(allow("x", get()), "a"), of(allow("y", put()), "b")],
            &ab,
            false,
        ),
        (
            "each has an ALLOW that matches",
            vec![of(allow("x", get()), "a"), of(allow("y", get()), "b")],
            &ab,
            true,
        ),
        (
            "one for both matches",
            vec![for_services(allow("x", get()), &["a", "b"])],
            &ab,
            true,
        ),
        (
            "ports are those of the service, to deny",
            vec![of(deny("d", vec![at_port(81)]), "b")],
            &ab,
            false,
        ),
        (
            "ports are those of the service, to allow",
            vec![of(allow("x", vec![at_port(81)]), "b")],
            &ab,
            true,
        ),
        (
            "the port that a host is denied at is that of the service",
            vec![of(deny("d", vec![host("shop.example.com:81")]), "b")],
            &ab,
            false,
        ),
        (
            "a host that is denied at the pod's port is not at the service's",
            vec![of(deny("d", vec![host("shop.example.com:80")]), "b")],
            &ab,
            true,
        ),
        (
            "the port of the pod is not one of the service",
            vec![of(allow("x", vec![at_port(80)]), "b")],
            &ab,
            false,
        ),
        (
            "each port of one service has to let it pass",
            vec![of(allow("x", vec![at_port(80)]), "a")],
            &[port("a", 80), port("a", 82)],
            false,
        ),
        (
            "the waypoint denies at the pod's port",
            vec![deny("d", vec![at_port(80)])],
            &[port("a", 90)],
            false,
        ),
        (
            "the waypoint denies at the service's port",
            vec![deny("d", vec![at_port(90)])],
            &[port("a", 90)],
            false,
        ),
        (
            "the waypoint's ALLOW counts for all services",
            vec![allow("w", get()), of(allow("x", put()), "a")],
            &ab,
            true,
        ),
    ];
    for (name, all, ports, expected) in cases {
        let decision = decide(&policies(all), Scope::Pod(ports));
        assert_eq!(decision.is_allowed(), expected, "{name}: {decision}");
    }
    // A policy attached to several of them is reported once.
    let audit = policy("audit", HttpAction::Audit, any());
    let dry = HttpPolicy {
        dry_run: true,
        ..deny("dry", any())
    };
    let all = [audit, dry].map(|policy| for_services(policy, &["a", "b"]));
    let decision = decide(&policies(all), Scope::Pod(&ab));
    assert_eq!(
        (
            decision.matched_audit_rules.len(),
            decision.dry_run_denials.len()
        ),
        (1, 1)
    );
    // Policies of a service require HTTP.
    let of_path = policies([of(deny("d", get()), "b")]);
    assert!(of_path.needs_http(Scope::Pod(&ab)) && !of_path.needs_http(Scope::Pod(&[])));
}
