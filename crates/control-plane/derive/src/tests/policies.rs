//! AuthorizationPolicies: conversion, scope, invalid policies.

use ambit_k8s_api::Kind;
use ambit_model::{Action, Match, Rule, Scope, StringMatch};

use super::*;

fn policy(spec: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: p, namespace: shop}}\nspec: {spec}\n"
    )
}

fn converted_rules(spec: &str) -> Vec<Rule> {
    let mesh = TestMesh::from_yaml(&policy(spec));
    assert!(
        !mesh
            .problems()
            .iter()
            .any(|problem| problem.contains("refused")),
        "{:?}",
        mesh.problems()
    );
    mesh.policy("shop/p").rules.clone()
}

fn exact(text: &str) -> StringMatch {
    StringMatch::Exact(text.into())
}

#[test]
fn scopes_follow_selector_and_namespace() {
    let of = |namespace: &str, spec: &str| {
        let mesh = TestMesh::from_yaml(
            &policy(spec).replace("namespace: shop", &format!("namespace: {namespace}")),
        );
        mesh.policy(&format!("{namespace}/p")).scope
    };
    assert_eq!(of("shop", "{}"), Scope::Namespace);
    assert_eq!(of("istio-system", "{}"), Scope::Global);
    assert_eq!(
        of("shop", "{selector: {matchLabels: {a: b}}}"),
        Scope::WorkloadSelector
    );
    assert_eq!(
        of("istio-system", "{selector: {matchLabels: {a: b}}}"),
        Scope::WorkloadSelector
    );
}

#[test]
fn selected_workloads_list_it_and_others_do_not() {
    let other = cart_pod(&[("cart-1", "other-1"), ("app: cart", "app: other")]);
    let far = cart_pod(&[
        ("namespace: shop", "namespace: far"),
        ("name: cart-1", "name: cart-2"),
    ]);
    let mut mesh = TestMesh::from_yaml(&join_documents(&[CART_POD, &other, &far]));
    let selecting = policy("{selector: {matchLabels: {app: cart}}}");
    assert_eq!(mesh.apply(&selecting), ["c1//Pod/shop/cart-1", "shop/p"]);
    assert_eq!(mesh.pod("cart-1").authorization_policies, ["shop/p"]);
    // The rules change, not the selector: the workloads are not published again.
    let changed = policy(
        "{selector: {matchLabels: {app: cart}}, action: DENY, rules: [{to: [{operation: {ports: [\"1\"]}}]}]}",
    );
    assert_eq!(mesh.apply(&changed), ["shop/p"]);
    assert_eq!(
        mesh.apply(&policy("{selector: {matchLabels: {app: other}}}")),
        ["c1//Pod/shop/cart-1", "c1//Pod/shop/other-1", "shop/p"]
    );
    // From the root namespace, into all.
    let root = selecting.replace("namespace: shop", "namespace: istio-system");
    assert_eq!(
        mesh.apply(&root),
        [
            "c1//Pod/far/cart-2",
            "c1//Pod/shop/cart-1",
            "istio-system/p"
        ]
    );
    assert_eq!(
        mesh.delete(Kind::AuthorizationPolicy, "shop", "p"),
        ["c1//Pod/shop/other-1", "-shop/p"]
    );
}

#[test]
fn the_shape_is_operations_then_sources_then_conditions() {
    let rules = converted_rules(
        "{rules: [{from: [{source: {principals: [a, b]}}, {source: {namespaces: [x*], notIpBlocks: [10.1.2.3/16]}}],
          to: [{operation: {ports: [\"80\", \"81\"], notPorts: [\"82\"]}}],
          when: [{key: source.ip, values: [10.0.0.1], notValues: [\"fd00::1\"]}, {key: destination.port, values: [\"80\"]}]}]}",
    );
    let expected = vec![
        vec![Match {
            destination_ports: vec![80, 81],
            not_destination_ports: vec![82],
            ..Match::default()
        }],
        vec![
            Match {
                principals: vec![exact("a"), exact("b")],
                ..Match::default()
            },
            Match {
                namespaces: vec![StringMatch::Prefix("x".into())],
                not_source_ips: vec!["10.1.0.0/16".parse().unwrap()],
                ..Match::default()
            },
        ],
        vec![Match {
            source_ips: vec!["10.0.0.1/32".parse().unwrap()],
            not_source_ips: vec!["fd00::1/128".parse().unwrap()],
            ..Match::default()
        }],
        vec![Match {
            destination_ports: vec![80],
            ..Match::default()
        }],
    ];
    assert_eq!(rules, [expected]);
}

#[test]
fn an_empty_rule_matches_all_and_no_rule_matches_nothing() {
    assert_eq!(converted_rules("{rules: [{}]}"), [Rule::new()]);
    assert_eq!(converted_rules("{}"), Vec::<Rule>::new());
    assert_eq!(converted_rules("{rules: []}"), Vec::<Rule>::new());
}

#[test]
fn an_allow_rule_about_requests_allows_nothing_here() {
    let mesh = TestMesh::from_yaml(&policy(
        "{rules: [{to: [{operation: {methods: [GET]}}]}, {from: [{source: {namespaces: [a]}}]}]}",
    ));
    assert_eq!(mesh.policy("shop/p").rules.len(), 1);
    assert_eq!(
        mesh.problems(),
        [
            "AuthorizationPolicy shop/p: spec.rules[0]: spec.rules[0].to[0].operation.methods can only be evaluated by a waypoint: this rule allows nothing here"
        ]
    );
    let only = TestMesh::from_yaml(&policy(
        "{rules: [{when: [{key: \"request.headers[x]\", values: [y]}]}]}",
    ));
    assert_eq!(
        (
            only.policy("shop/p").rules.len(),
            only.policy("shop/p").action
        ),
        (0, Action::Allow)
    );
}

#[test]
fn a_deny_rule_about_requests_denies_more_or_nothing() {
    let mesh = TestMesh::from_yaml(&policy(
        "{action: DENY, rules: [{to: [{operation: {ports: [\"8080\"], methods: [DELETE]}}]}]}",
    ));
    let expected = vec![vec![Match {
        destination_ports: vec![8080],
        ..Match::default()
    }]];
    assert_eq!(mesh.policy("shop/p").rules, [expected]);
    assert!(
        mesh.problems()[0].contains("denies more here"),
        "{:?}",
        mesh.problems()
    );
    let mesh = TestMesh::from_yaml(&policy(
        "{action: DENY, rules: [{from: [{source: {namespaces: [evil]}}], to: [{operation: {methods: [DELETE]}}]}]}",
    ));
    let rule = &mesh.policy("shop/p").rules[0];
    assert_eq!(
        rule[0],
        [Match::default()],
        "a match without fields never matches"
    );
    assert!(
        mesh.problems()[0].contains("denies nothing here"),
        "{:?}",
        mesh.problems()
    );
}

#[test]
fn patterns_are_kept() {
    let rules = converted_rules(
        "{rules: [{from: [{source: {principals: [\"*\", \"*/sa/x\", \"td/*\", \"spiffe://td/ns/a/sa/b\"]}}]}]}",
    );
    assert_eq!(
        rules[0][0][0].principals,
        [
            StringMatch::Presence,
            StringMatch::Suffix("/sa/x".into()),
            StringMatch::Prefix("td/".into()),
            exact("spiffe://td/ns/a/sa/b")
        ]
    );
}

#[test]
fn patterns_of_others_are_literal_and_reported() {
    let mesh = TestMesh::from_yaml(&policy(
        "{rules: [{from: [{source: {principals: [\"td/ns/*/sa/x\"], notNamespaces: [\"a*b*\"]}}]}]}",
    ));
    let one = &mesh.policy("shop/p").rules[0][0][0];
    assert_eq!(one.principals, [exact("td/ns/*/sa/x")]);
    assert_eq!(one.not_namespaces, [StringMatch::Prefix("a*b".into())]);
    for (problem, field) in mesh
        .problems()
        .iter()
        .zip(["principals[0]", "notNamespaces[0]"])
    {
        assert!(
            problem.contains(field) && problem.contains("matches nobody"),
            "{problem}"
        );
    }
    assert_eq!(mesh.problems().len(), 2);
}

#[test]
fn an_empty_list_is_no_list() {
    for (empty, absent) in [
        (
            "{targetRefs: [], action: DENY, rules: [{}]}",
            "{action: DENY, rules: [{}]}",
        ),
        ("{rules: []}", "{}"),
        ("{rules: [{from: [], to: [], when: []}]}", "{rules: [{}]}"),
        (
            "{rules: [{from: [{source: {principals: [], namespaces: [a], ipBlocks: [], remoteIpBlocks: []}}]}]}",
            "{rules: [{from: [{source: {namespaces: [a]}}]}]}",
        ),
        (
            "{rules: [{to: [{operation: {methods: [], notPaths: [], ports: [\"80\"]}}]}]}",
            "{rules: [{to: [{operation: {ports: [\"80\"]}}]}]}",
        ),
        (
            "{rules: [{when: [{key: source.ip, values: [], notValues: [10.0.0.1]}]}]}",
            "{rules: [{when: [{key: source.ip, notValues: [10.0.0.1]}]}]}",
        ),
        (
            "{selector: {matchLabels: {}}, rules: [{}]}",
            "{rules: [{}]}",
        ),
        ("{selector: {}, rules: [{}]}", "{rules: [{}]}"),
    ] {
        let mesh = TestMesh::from_yaml(&policy(empty));
        assert_eq!(mesh.problems(), Vec::<String>::new(), "{empty}");
        let other = TestMesh::from_yaml(&policy(absent));
        assert_eq!(mesh.policy("shop/p"), other.policy("shop/p"), "{empty}");
    }
}

#[test]
fn service_accounts_default_to_the_policys_namespace() {
    let rules = converted_rules(
        "{rules: [{from: [{source: {serviceAccounts: [web, other/api]}}], when: [{key: source.serviceAccount, notValues: [bad]}]}]}",
    );
    let text = |matches: &[ambit_model::ServiceAccountMatch]| -> Vec<String> {
        matches
            .iter()
            .map(|one| format!("{}/{}", one.namespace, one.service_account))
            .collect()
    };
    assert_eq!(
        text(&rules[0][0][0].service_accounts),
        ["shop/web", "other/api"]
    );
    assert_eq!(text(&rules[0][1][0].not_service_accounts), ["shop/bad"]);
}

#[test]
fn trust_domains_are_not_ignored() {
    let one = converted_rules("{rules: [{from: [{source: {trustDomains: [td1, td*]}}]}]}");
    let domains = vec![
        StringMatch::Prefix("td1/".into()),
        StringMatch::Prefix("td".into()),
    ];
    assert_eq!(
        one,
        [vec![vec![Match {
            principals: domains,
            ..Match::default()
        }]]]
    );
    let not =
        converted_rules("{rules: [{from: [{source: {principals: [a], notTrustDomains: [td1]}}]}]}");
    assert_eq!(
        not[0][0][0].not_principals,
        [StringMatch::Prefix("td1/".into())]
    );
    // Together with principals both must hold, for each source by itself.
    let both = converted_rules(
        "{rules: [{from: [{source: {principals: [a], trustDomains: [td1]}}, {source: {namespaces: [n]}}], to: [{operation: {ports: [\"1\"]}}]}]}",
    );
    assert_eq!(both.len(), 2, "{both:?}");
    assert_eq!(both[0].len(), 3);
    assert_eq!(both[0][1][0].principals, [exact("a")]);
    assert_eq!(
        both[0][2][0].principals,
        [StringMatch::Prefix("td1/".into())]
    );
    assert_eq!(both[1].len(), 2);
}

#[test]
fn policies_not_for_node_proxies_are_not_sent() {
    for (spec, field) in [
        ("{action: AUDIT}", "spec.action"),
        ("{action: CUSTOM, provider: {name: x}}", "spec.action"),
    ] {
        let mut mesh = TestMesh::from_yaml(CART_POD);
        assert_eq!(mesh.apply(&policy(spec)), Vec::<String>::new(), "{spec}");
        assert!(mesh.problems()[0].contains(field), "{:?}", mesh.problems());
    }
    let dry = policy("{}").replace(
        "namespace: shop}",
        "namespace: shop, annotations: {istio.io/dry-run: \"true\"}}",
    );
    let mesh = TestMesh::from_yaml(&dry);
    assert!(mesh.policies.is_empty());
    assert!(mesh.problems()[0].contains("--dry-run-policies"));
    let mut mesh = TestMesh::empty();
    mesh.index = Index::new(MeshConfig {
        dry_run_policies: true,
        ..MeshConfig::default()
    });
    mesh.apply(&dry);
    assert!(mesh.policy("shop/p").dry_run);
}

#[test]
fn an_entry_that_cannot_be_understood_refuses_the_whole_policy() {
    let good = "{rules: [{from: [{source: {ipBlocks: [10.0.0.0/8]}}]}]}";
    for (spec, field) in [
        (
            "{rules: [{from: [{source: {ipBlocks: [10.0.0.0/8, 10.0.0.0/33]}}]}]}",
            "spec.rules[0].from[0].source.ipBlocks[1]",
        ),
        (
            "{rules: [{from: [{source: {notIpBlocks: [nonsense]}}]}]}",
            "spec.rules[0].from[0].source.notIpBlocks[0]",
        ),
        (
            "{rules: [{to: [{operation: {ports: [\"80\", http]}}]}]}",
            "spec.rules[0].to[0].operation.ports[1]",
        ),
        (
            "{rules: [{to: [{operation: {notPorts: [\"0\"]}}]}]}",
            "spec.rules[0].to[0].operation.notPorts[0]",
        ),
        (
            "{rules: [{to: [{operation: {ports: []}}]}]}",
            "spec.rules[0].to[0].operation",
        ),
        ("{rules: [{to: [{}]}]}", "spec.rules[0].to[0].operation"),
        (
            "{rules: [{from: [{source: {}}]}]}",
            "spec.rules[0].from[0].source",
        ),
        (
            "{rules: [{from: [{source: {principals: [\"\"]}}]}]}",
            "spec.rules[0].from[0].source.principals[0]",
        ),
        (
            "{rules: [{from: [{source: {serviceAccounts: [\"a/*\"]}}]}]}",
            "spec.rules[0].from[0].source.serviceAccounts[0]",
        ),
        (
            "{rules: [{from: [{source: {trustDomains: [\"*x\"]}}]}]}",
            "spec.rules[0].from[0].source.trustDomains[0]",
        ),
        (
            "{rules: [{when: [{key: source.ip}]}]}",
            "spec.rules[0].when[0]",
        ),
        (
            "{rules: [{when: [{key: source.nonsense, values: [a]}]}]}",
            "spec.rules[0].when[0].key",
        ),
        (
            "{rules: [{when: [{key: destination.port, values: [http]}]}]}",
            "spec.rules[0].when[0].values[0]",
        ),
    ] {
        let mut mesh = TestMesh::from_yaml(&policy(good));
        let before = mesh.policy("shop/p").clone();
        assert_eq!(mesh.apply(&policy(spec)), Vec::<String>::new(), "{spec}");
        assert_eq!(mesh.policy("shop/p"), &before, "the last good state stays");
        let problem = &mesh.problems()[0];
        assert!(
            problem.starts_with(&format!("AuthorizationPolicy shop/p: {field}: ")),
            "{spec}: {problem}"
        );
        assert!(
            problem.ends_with("; its last good version stays in force"),
            "{problem}"
        );
        // The same as a new object, whenever it comes: everything in its scope is refused.
        let mut mesh = TestMesh::from_yaml(CART_POD);
        assert_eq!(mesh.apply(&policy(spec)), ["shop/p"]);
        assert_eq!(mesh.policy("shop/p").action, Action::Deny);
        assert_eq!(mesh.policy("shop/p").rules, [Rule::new()]);
        assert!(
            mesh.problems()[0]
                .ends_with("; everything in its scope is refused until it is corrected"),
            "{:?}",
            mesh.problems()
        );
    }
}

#[test]
fn policy_that_never_was_usable_denies_everything() {
    let broken = policy(
        "{selector: {matchLabels: {app: cart}}, rules: [{to: [{operation: {ports: [http]}}]}]}",
    );
    let mut mesh = TestMesh::from_yaml(&join_documents(&[CART_POD, &broken]));
    let substitute = mesh.policy("shop/p");
    assert_eq!(
        (substitute.action, substitute.scope, &substitute.rules),
        (Action::Deny, Scope::WorkloadSelector, &vec![Rule::new()])
    );
    assert_eq!(mesh.pod("cart-1").authorization_policies, ["shop/p"]);
    assert!(
        mesh.problems()[0].contains("refused until it is corrected"),
        "{:?}",
        mesh.problems()
    );
    // Its scope is what it is now.
    mesh.apply(&policy(
        "{selector: {matchLabels: {app: other}}, rules: [{to: [{}]}]}",
    ));
    assert!(mesh.pod("cart-1").authorization_policies.is_empty());
    mesh.apply(&policy("{selector: {matchLabels: {app: cart}}}"));
    assert_eq!(mesh.policy("shop/p").action, Action::Allow);
}

#[test]
fn nothing_stands_in_for_what_would_not_be_enforced_here() {
    let attached = "{selector: {matchLabels: {a: b}}, targetRefs: [{kind: Gateway, name: x}]}";
    let mesh = TestMesh::from_yaml(&policy(attached));
    assert!(mesh.policies.is_empty());
    let dry = policy("{rules: [{to: [{}]}]}").replace(
        "namespace: shop}",
        "namespace: shop, annotations: {istio.io/dry-run: \"true\"}}",
    );
    assert!(TestMesh::from_yaml(&dry).policies.is_empty());
}
