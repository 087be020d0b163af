//! Tests of each evaluation rule, and comparison of decisions with a naive reference implementation.

mod peer_authentication;

use std::net::IpAddr;

use ambit_model::{
    Action, ArcStr, Authorization, Clause, Identity, Match, PolicyKey, Scope, ServiceAccountMatch,
    StringMatch, Workload,
};
use ipnet::IpNet;
use proptest::{collection::vec, option, prelude::*};

use super::*;

fn exact_match(text: &str) -> Vec<StringMatch> {
    vec![StringMatch::Exact(text.into())]
}

fn policy(name: &str, action: Action, rules: Vec<Vec<Clause>>) -> Authorization {
    Authorization {
        name: name.into(),
        namespace: "ns".into(),
        scope: Scope::Namespace,
        action,
        rules,
        dry_run: false,
        not_understood: None,
    }
}

/// Builds the rules of a policy from a match: one rule with one clause.
fn match_clause(m: Match) -> Vec<Vec<Clause>> {
    vec![vec![vec![m]]]
}

fn principal_match(account: &str) -> Match {
    Match {
        principals: exact_match(&format!("td/ns/clients/sa/{account}")),
        ..Match::default()
    }
}

fn destination_workload() -> Workload {
    Workload {
        namespace: "ns".into(),
        ..Workload::default()
    }
}

fn connection_from(account: &str) -> Connection {
    Connection {
        source: Some(Identity::new("td", "clients", account)),
        source_ip: "10.0.0.1".parse().unwrap(),
        destination: "10.0.0.2:8080".parse().unwrap(),
    }
}

fn plaintext_connection() -> Connection {
    Connection {
        source: None,
        ..connection_from("x")
    }
}

fn policy_set(policies: Vec<Authorization>) -> PolicySet {
    let mut set = PolicySet::new(MissingPolicies::Deny);
    for policy in policies {
        set.insert(policy);
    }
    set
}

fn policy_key(name: &str) -> PolicyKey {
    PolicyKey {
        namespace: "ns".into(),
        name: name.into(),
    }
}

#[test]
fn without_policies_everything_is_allowed() {
    let decision = policy_set(vec![]).evaluate(&destination_workload(), &plaintext_connection());
    assert!(decision.allowed);
    assert_eq!(decision.reason, DecisionReason::NoPolicies);
}

#[test]
fn an_allow_policy_allows_its_matches_and_nothing_else() {
    let set = policy_set(vec![policy(
        "p",
        Action::Allow,
        match_clause(principal_match("a")),
    )]);
    let allowed = set.evaluate(&destination_workload(), &connection_from("a"));
    assert!(allowed.allowed);
    assert_eq!(allowed.decided_by, Some(policy_key("p")));
    assert_eq!(allowed.to_string(), "allowed by: ns/p");
    for connection in [connection_from("b"), plaintext_connection()] {
        let denied = set.evaluate(&destination_workload(), &connection);
        assert!(!denied.allowed);
        assert_eq!(denied.to_string(), "allow policies exist, but none allowed");
    }
}

#[test]
fn deny_policies_are_evaluated_first() {
    let set = policy_set(vec![
        policy("allow", Action::Allow, match_clause(principal_match("a"))),
        policy("deny", Action::Deny, match_clause(principal_match("a"))),
    ]);
    let decision = set.evaluate(&destination_workload(), &connection_from("a"));
    assert!(!decision.allowed);
    assert_eq!(decision.to_string(), "explicitly denied by: ns/deny");
}

#[test]
fn deny_policies_alone_leave_the_rest_allowed() {
    let set = policy_set(vec![policy(
        "deny",
        Action::Deny,
        match_clause(principal_match("a")),
    )]);
    let decision = set.evaluate(&destination_workload(), &connection_from("b"));
    assert!(decision.allowed);
    assert_eq!(decision.reason, DecisionReason::NoAllowPolicies);
}

#[test]
fn a_policy_without_rules_never_matches_but_counts() {
    let nothing = policy_set(vec![policy("p", Action::Allow, vec![])]);
    assert_eq!(
        nothing
            .evaluate(&destination_workload(), &connection_from("a"))
            .reason,
        DecisionReason::NoAllowPolicyMatched
    );
    let nothing = policy_set(vec![policy("p", Action::Deny, vec![])]);
    assert!(
        nothing
            .evaluate(&destination_workload(), &connection_from("a"))
            .allowed
    );
}

#[test]
fn empty_rules_and_clauses_match_and_empty_matches_do_not() {
    let matches =
        |rules| matches_policy(&policy("p", Action::Allow, rules), &plaintext_connection());
    assert!(!matches(vec![]));
    assert!(matches(vec![vec![]]));
    assert!(matches(vec![vec![vec![]]]));
    assert!(!matches(vec![vec![vec![Match::default()]]]));
    assert!(!matches(vec![vec![vec![], vec![Match::default()]]]));
}

#[test]
fn rules_or_clauses_and_matches_or_fields_and_values_or() {
    let port = |port| Match {
        destination_ports: vec![port],
        ..Match::default()
    };
    let matches = |rules| matches_policy(&policy("p", Action::Allow, rules), &connection_from("a"));
    // Rules OR.
    assert!(matches(vec![vec![vec![port(1)]], vec![vec![port(8080)]]]));
    // Clauses AND.
    assert!(!matches(vec![vec![vec![port(1)], vec![port(8080)]]]));
    assert!(matches(vec![vec![
        vec![principal_match("a")],
        vec![port(8080)]
    ]]));
    // Matches OR.
    assert!(matches(vec![vec![vec![port(1), port(8080)]]]));
    // Fields AND.
    assert!(!matches(match_clause(Match {
        destination_ports: vec![1],
        ..principal_match("a")
    })));
    // Values OR.
    assert!(matches(match_clause(Match {
        destination_ports: vec![1, 8080],
        ..Match::default()
    })));
    assert_eq!(
        matching_rule(
            &policy(
                "p",
                Action::Allow,
                vec![vec![vec![port(1)]], vec![vec![port(8080)]]]
            ),
            &connection_from("a")
        ),
        Some(1)
    );
}

#[test]
fn without_an_identity_positive_fields_fail_and_negative_ones_hold() {
    let any = vec![StringMatch::Presence];
    let account = ServiceAccountMatch {
        namespace: "n".into(),
        service_account: "s".into(),
    };
    for (positive, m) in [
        (
            true,
            Match {
                principals: any.clone(),
                ..Match::default()
            },
        ),
        (
            true,
            Match {
                namespaces: any.clone(),
                ..Match::default()
            },
        ),
        (
            true,
            Match {
                service_accounts: vec![account.clone()],
                ..Match::default()
            },
        ),
        (
            false,
            Match {
                not_principals: any.clone(),
                ..Match::default()
            },
        ),
        (
            false,
            Match {
                not_namespaces: any,
                ..Match::default()
            },
        ),
        (
            false,
            Match {
                not_service_accounts: vec![account],
                ..Match::default()
            },
        ),
    ] {
        let policy = policy("p", Action::Deny, match_clause(m));
        assert_eq!(
            matches_policy(&policy, &plaintext_connection()),
            !positive,
            "{policy:?}"
        );
    }
}

#[test]
fn strict_mutual_tls_denies_plaintext_only() {
    let m = Match {
        not_principals: vec![StringMatch::Presence],
        ..Match::default()
    };
    let set = policy_set(vec![policy("strict", Action::Deny, match_clause(m))]);
    assert!(
        !set.evaluate(&destination_workload(), &plaintext_connection())
            .allowed
    );
    assert!(
        set.evaluate(&destination_workload(), &connection_from("a"))
            .allowed
    );
}

#[test]
fn texts_compare_exactly_by_prefix_by_suffix_and_by_presence() {
    let matches = |matcher: StringMatch| {
        let m = Match {
            principals: vec![matcher],
            ..Match::default()
        };
        matches_policy(
            &policy("p", Action::Allow, match_clause(m)),
            &connection_from("a"),
        )
    };
    assert!(matches(StringMatch::Exact("td/ns/clients/sa/a".into())));
    assert!(!matches(StringMatch::Exact(
        "spiffe://td/ns/clients/sa/a".into()
    )));
    assert!(matches(StringMatch::Prefix("td/ns/clients/".into())));
    assert!(matches(StringMatch::Suffix("/sa/a".into())));
    assert!(!matches(StringMatch::Suffix("/sa".into())));
    assert!(matches(StringMatch::Presence));
}

#[test]
fn addresses_match_by_prefix_and_family() {
    let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    let matches = |m| {
        matches_policy(
            &policy("p", Action::Allow, match_clause(m)),
            &connection_from("a"),
        )
    };
    assert!(matches(Match {
        source_ips: nets(&["10.0.0.0/24"]),
        ..Match::default()
    }));
    assert!(!matches(Match {
        source_ips: nets(&["10.0.1.0/24", "::/0"]),
        ..Match::default()
    }));
    assert!(matches(Match {
        destination_ips: nets(&["10.0.0.2/32"]),
        ..Match::default()
    }));
    assert!(!matches(Match {
        not_destination_ips: nets(&["0.0.0.0/0"]),
        ..Match::default()
    }));
}

#[test]
fn policies_apply_in_their_scope_only() {
    let with = |scope, namespace: &str, names: &[&str]| {
        let deny = Authorization {
            scope,
            namespace: namespace.into(),
            ..policy("p", Action::Deny, vec![vec![]])
        };
        let destination = Workload {
            authorization_policies: names.iter().map(|name| ArcStr::from(*name)).collect(),
            ..destination_workload()
        };
        !policy_set(vec![deny])
            .evaluate(&destination, &connection_from("a"))
            .allowed
    };
    assert!(with(Scope::Global, "root", &[]));
    assert!(with(Scope::Namespace, "ns", &[]));
    assert!(!with(Scope::Namespace, "other", &[]));
    assert!(!with(Scope::WorkloadSelector, "ns", &[]));
    assert!(with(Scope::WorkloadSelector, "ns", &["ns/p"]));
}

#[test]
fn unknown_named_policy_denies_unless_configured_otherwise() {
    let destination = Workload {
        authorization_policies: vec!["ns/coming".into()],
        ..destination_workload()
    };
    let decision = policy_set(vec![]).evaluate(&destination, &connection_from("a"));
    assert!(!decision.allowed);
    assert!(decision.to_string().contains("ns/coming"), "{decision}");
    let lenient = PolicySet::new(MissingPolicies::Ignore);
    assert!(
        lenient
            .evaluate(&destination, &connection_from("a"))
            .allowed
    );
}

#[test]
fn known_deny_policy_decides_before_missing_policy() {
    let destination = Workload {
        authorization_policies: vec!["ns/coming".into()],
        ..destination_workload()
    };
    let policies = vec![
        policy("no-a", Action::Deny, match_clause(principal_match("a"))),
        policy("only-b", Action::Allow, match_clause(principal_match("b"))),
    ];
    let why = |who| {
        policy_set(policies.clone())
            .evaluate(&destination, &connection_from(who))
            .reason
    };
    assert_eq!(why("a"), DecisionReason::Denied);
    // The missing policy may be an ALLOW policy that matches.
    for who in ["b", "c"] {
        assert_eq!(why(who), DecisionReason::MissingPolicy("ns/coming".into()));
    }
}

#[test]
fn policy_not_understood_denies_its_scope_and_reports_why() {
    let substitute = |scope, dry_run| {
        Authorization::substitute(
            policy_key("odd"),
            scope,
            dry_run,
            "field 99 is unknown".into(),
        )
    };
    let decide = |policy, destination: &Workload| {
        policy_set(vec![policy]).evaluate(destination, &connection_from("a"))
    };
    let elsewhere = Workload {
        namespace: "other".into(),
        ..destination_workload()
    };
    let naming = Workload {
        authorization_policies: vec!["ns/odd".into()],
        ..elsewhere.clone()
    };
    let decision = decide(substitute(Scope::Namespace, false), &destination_workload());
    assert_eq!(
        decision.reason,
        DecisionReason::InvalidPolicy("field 99 is unknown".into())
    );
    assert!(!decision.allowed);
    assert_eq!(
        decision.to_string(),
        "denied: policy ns/odd is not understood (field 99 is unknown), so it denies everything it covers"
    );
    assert!(decide(substitute(Scope::Namespace, false), &elsewhere).allowed);
    assert!(!decide(substitute(Scope::Global, false), &elsewhere).allowed);
    let selected = substitute(Scope::WorkloadSelector, false);
    assert!(decide(selected.clone(), &destination_workload()).allowed);
    assert!(!decide(selected, &naming).allowed);
    assert!(decide(substitute(Scope::Global, true), &destination_workload()).allowed);
}

#[test]
fn dry_run_denials_are_those_of_enforced_policies() {
    let dry = |name, action, rules| Authorization {
        dry_run: true,
        ..policy(name, action, rules)
    };
    let would = |policies: Vec<Authorization>, account: &str| {
        let set = policy_set(policies);
        let refusing = set.dry_run_denials(&destination_workload(), &connection_from(account));
        refusing
            .iter()
            .map(|key| key.name.to_string())
            .collect::<Vec<_>>()
    };
    let deny = dry("d", Action::Deny, match_clause(principal_match("a")));
    let allow = dry("a", Action::Allow, match_clause(principal_match("b")));
    let enforced = policy("e", Action::Allow, match_clause(principal_match("c")));
    let all = vec![deny, allow, enforced];
    assert_eq!(would(all.clone(), "a"), ["d", "a"]);
    assert_eq!(would(all.clone(), "b"), [""; 0]);
    // An enforced ALLOW policy matches, so enforcing the dry run refuses nothing.
    assert_eq!(would(all.clone(), "c"), [""; 0]);
    assert_eq!(would(all, "x"), ["a"]);
    assert_eq!(
        would(vec![policy("e", Action::Deny, vec![vec![]])], "a"),
        [""; 0]
    );
    // A policy that is no longer a dry run is enforced, and not reported.
    let mut set = policy_set(vec![dry("d", Action::Deny, vec![vec![]])]);
    assert_eq!(
        set.dry_run_denials(&destination_workload(), &connection_from("a"))
            .len(),
        1
    );
    set.insert(policy("d", Action::Deny, vec![vec![]]));
    assert!(
        set.dry_run_denials(&destination_workload(), &connection_from("a"))
            .is_empty()
    );
    set.remove(&policy_key("d"));
    assert!(set.is_empty());
}

#[test]
fn dry_run_policies_report_and_decide_nothing() {
    let dry = |name, action| Authorization {
        dry_run: true,
        ..policy(name, action, vec![vec![]])
    };
    let set = policy_set(vec![dry("d", Action::Deny), dry("a", Action::Allow)]);
    let decision = set.evaluate(&destination_workload(), &connection_from("a"));
    assert!(decision.allowed);
    assert_eq!(decision.reason, DecisionReason::NoAllowPolicies);
    assert_eq!(
        decision.dry_run_matches,
        [
            DryRunMatch {
                policy: policy_key("d"),
                action: Action::Deny
            },
            DryRunMatch {
                policy: policy_key("a"),
                action: Action::Allow
            },
        ]
    );
}

#[test]
fn policy_change_reports_affected_workloads() {
    let mut set = policy_set(vec![]);
    let global = Authorization {
        scope: Scope::Global,
        ..policy("p", Action::Deny, vec![vec![]])
    };
    assert_eq!(set.insert(global.clone()), AffectedWorkloads::All);
    assert_eq!(set.insert(global.clone()), AffectedWorkloads::None);
    let selector = Authorization {
        scope: Scope::WorkloadSelector,
        ..global
    };
    let both = set.insert(selector);
    assert!(both.includes(&destination_workload()));
    assert!(
        !set.is_empty()
            && set
                .evaluate(&destination_workload(), &connection_from("a"))
                .allowed
    );
    let naming = Workload {
        authorization_policies: vec!["ns/p".into()],
        ..destination_workload()
    };
    let gone = set.remove_named("ns/p");
    assert!(gone.includes(&naming) && !gone.includes(&destination_workload()));
    assert_eq!(set.remove_named("ns/p"), AffectedWorkloads::None);
    assert_eq!(set.remove_named("nonsense"), AffectedWorkloads::None);
    assert!(set.is_empty());
}

#[test]
fn an_explanation_shows_every_policy_that_applies() {
    let set = policy_set(vec![
        policy(
            "allow",
            Action::Allow,
            vec![
                vec![vec![principal_match("x")]],
                vec![vec![principal_match("a")]],
            ],
        ),
        policy("deny", Action::Deny, match_clause(principal_match("b"))),
        Authorization {
            namespace: "other".into(),
            ..policy("far", Action::Deny, vec![vec![]])
        },
    ]);
    let destination = Workload {
        authorization_policies: vec!["ns/gone".into()],
        ..destination_workload()
    };
    let explanation = set.explain(&destination, &connection_from("a"));
    assert!(!explanation.decision.allowed);
    assert_eq!(explanation.missing_policies, ["ns/gone"]);
    let seen: Vec<_> = explanation
        .policies
        .iter()
        .map(|evaluation| (evaluation.policy.name.as_str(), evaluation.outcome))
        .collect();
    assert_eq!(
        seen,
        [
            ("deny", PolicyOutcome::NoMatch),
            ("allow", PolicyOutcome::Matches { rule: 1 })
        ]
    );
}

#[test]
fn index_evaluates_few_of_many_rules() {
    let rules = |number: usize| {
        (0..10)
            .flat_map(|rule| match_clause(principal_match(&format!("p{number}-{rule}"))))
            .collect()
    };
    let set = policy_set(
        (0..10_000)
            .map(|number| policy(&format!("p{number}"), Action::Allow, rules(number)))
            .collect(),
    );
    let decision = set.evaluate(&destination_workload(), &connection_from("p9999-9"));
    assert_eq!(decision.decided_by, Some(policy_key("p9999")));
    assert!(
        !set.evaluate(&destination_workload(), &connection_from("nobody"))
            .allowed
    );
}

// === a naive reference ===

fn arbitrary_word() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("a".to_owned()),
        Just("b".to_owned()),
        Just("ab".to_owned())
    ]
}

fn arbitrary_string_match(
    text: impl Strategy<Value = String>,
) -> impl Strategy<Value = StringMatch> {
    (text, 0..4usize).prop_map(|(text, kind)| match kind {
        0 => StringMatch::Prefix(text.into()),
        1 => StringMatch::Suffix(text.into()),
        2 => StringMatch::Presence,
        _ => StringMatch::Exact(text.into()),
    })
}

fn arbitrary_principal() -> impl Strategy<Value = String> {
    (arbitrary_word(), arbitrary_word()).prop_map(|(ns, sa)| format!("td/ns/{ns}/sa/{sa}"))
}

fn arbitrary_ip_net() -> impl Strategy<Value = IpNet> {
    (0..4u8, prop_oneof![Just(0u8), Just(24), Just(32)])
        .prop_map(|(last, length)| IpNet::new(IpAddr::from([10, 0, 0, last]), length).unwrap())
}

fn up_to_two<T: std::fmt::Debug>(
    strategy: impl Strategy<Value = T>,
) -> impl Strategy<Value = Vec<T>> {
    (prop::bool::weighted(0.25), vec(strategy, 1..3))
        .prop_map(|(set, values)| if set { values } else { Vec::new() })
}

fn account() -> impl Strategy<Value = ServiceAccountMatch> {
    (arbitrary_word(), arbitrary_word()).prop_map(|(namespace, account)| ServiceAccountMatch {
        namespace: namespace.into(),
        service_account: account.into(),
    })
}

prop_compose! {
    fn any_match()(
        namespaces in up_to_two(arbitrary_string_match(arbitrary_word())),
        not_namespaces in up_to_two(arbitrary_string_match(arbitrary_word())),
        principals in up_to_two(arbitrary_string_match(arbitrary_principal())),
        not_principals in up_to_two(arbitrary_string_match(arbitrary_principal())),
        service_accounts in up_to_two(account()),
        not_service_accounts in up_to_two(account()),
        (source_ips, not_source_ips) in (up_to_two(arbitrary_ip_net()), up_to_two(arbitrary_ip_net())),
        (destination_ips, not_destination_ips) in (up_to_two(arbitrary_ip_net()), up_to_two(arbitrary_ip_net())),
        (destination_ports, not_destination_ports) in (up_to_two(1..4u16), up_to_two(1..4u16)),
    ) -> Match {
        Match {
            namespaces, not_namespaces, principals, not_principals, service_accounts,
            not_service_accounts, source_ips, not_source_ips, destination_ips,
            not_destination_ips, destination_ports, not_destination_ports,
        }
    }
}

prop_compose! {
    fn any_policy()(
        name in 0..8u8,
        namespace in arbitrary_word(),
        scope in 0..3usize,
        deny in any::<bool>(),
        dry_run in prop::bool::weighted(0.2),
        rules in vec(vec(vec(any_match(), 0..3), 0..3), 0..3),
    ) -> Authorization {
        Authorization {
            name: format!("p{name}").into(),
            namespace: namespace.into(),
            scope: [Scope::Global, Scope::Namespace, Scope::WorkloadSelector][scope],
            action: if deny { Action::Deny } else { Action::Allow },
            rules,
            dry_run,
            not_understood: None,
        }
    }
}

prop_compose! {
    fn any_connection()(
        source in option::weighted(0.8, (arbitrary_word(), arbitrary_word())),
        (from, to, port) in (0..4u8, 0..4u8, 1..4u16),
    ) -> Connection {
        Connection {
            source: source.map(|(ns, sa)| Identity::new("td", ns, sa)),
            source_ip: IpAddr::from([10, 0, 0, from]),
            destination: (IpAddr::from([10, 0, 0, to]), port).into(),
        }
    }
}

/// Naive reference implementation of [`PolicySet::evaluate`]: follows the specification step by step, without an index.
fn naive_evaluate(
    policies: &[Authorization],
    destination: &Workload,
    connection: &Connection,
) -> bool {
    let named = &destination.authorization_policies;
    let is = |name: &ArcStr, policy: &Authorization| *name == policy.key().to_string();
    if named
        .iter()
        .any(|name| !policies.iter().any(|policy| is(name, policy)))
    {
        return false;
    }
    let applicable: Vec<_> = policies
        .iter()
        .filter(|policy| {
            !policy.dry_run
                && (policy.scope == Scope::Global
                    || (policy.scope == Scope::Namespace
                        && policy.namespace == destination.namespace)
                    || named.iter().any(|name| is(name, policy)))
        })
        .collect();
    let of = |action| {
        applicable
            .iter()
            .filter(move |policy| policy.action == action)
    };
    if of(Action::Deny).any(|policy| naive_policy_matches(policy, connection)) {
        return false;
    }
    let mut allow = of(Action::Allow).peekable();
    allow.peek().is_none() || allow.any(|policy| naive_policy_matches(policy, connection))
}

fn naive_policy_matches(policy: &Authorization, c: &Connection) -> bool {
    let text = |pattern: &[StringMatch], actual: Option<String>| match actual {
        Some(actual) => pattern.iter().any(|pattern| match pattern {
            StringMatch::Exact(text) => actual == text.as_str(),
            StringMatch::Prefix(text) => actual.starts_with(text.as_str()),
            StringMatch::Suffix(text) => actual.ends_with(text.as_str()),
            StringMatch::Presence => !actual.is_empty(),
        }),
        None => false,
    };
    let one = |m: &Match| {
        let namespace = || c.source.as_ref().map(|id| id.namespace.to_string());
        let principal = || {
            c.source
                .as_ref()
                .map(|id| id.to_string().strip_prefix("spiffe://").unwrap().to_owned())
        };
        let account = |pattern: &[ServiceAccountMatch]| {
            c.source.as_ref().is_some_and(|id| {
                pattern.iter().any(|w| {
                    (&w.namespace, &w.service_account) == (&id.namespace, &id.service_account)
                })
            })
        };
        let ip = |nets: &[IpNet], ip: IpAddr| nets.iter().any(|net| net.contains(&ip));
        let port = |ports: &[u16]| ports.contains(&c.destination.port());
        let mut fields = Vec::new();
        let mut field = |set: bool, positive: bool, any: bool| {
            if set {
                fields.push(any == positive);
            }
        };
        field(
            !m.namespaces.is_empty(),
            true,
            text(&m.namespaces, namespace()),
        );
        field(
            !m.not_namespaces.is_empty(),
            false,
            text(&m.not_namespaces, namespace()),
        );
        field(
            !m.principals.is_empty(),
            true,
            text(&m.principals, principal()),
        );
        field(
            !m.not_principals.is_empty(),
            false,
            text(&m.not_principals, principal()),
        );
        field(
            !m.service_accounts.is_empty(),
            true,
            account(&m.service_accounts),
        );
        field(
            !m.not_service_accounts.is_empty(),
            false,
            account(&m.not_service_accounts),
        );
        field(
            !m.source_ips.is_empty(),
            true,
            ip(&m.source_ips, c.source_ip),
        );
        field(
            !m.not_source_ips.is_empty(),
            false,
            ip(&m.not_source_ips, c.source_ip),
        );
        let to = c.destination.ip();
        field(
            !m.destination_ips.is_empty(),
            true,
            ip(&m.destination_ips, to),
        );
        field(
            !m.not_destination_ips.is_empty(),
            false,
            ip(&m.not_destination_ips, to),
        );
        field(
            !m.destination_ports.is_empty(),
            true,
            port(&m.destination_ports),
        );
        field(
            !m.not_destination_ports.is_empty(),
            false,
            port(&m.not_destination_ports),
        );
        !fields.is_empty() && fields.into_iter().all(|holds| holds)
    };
    policy.rules.iter().any(|rule| {
        rule.iter()
            .all(|clause| clause.is_empty() || clause.iter().any(one))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn decisions_are_those_of_the_naive_reference(
        policies in vec(any_policy(), 0..8),
        removed in vec(any::<prop::sample::Index>(), 0..3),
        named in vec(0..8u8, 0..3),
        namespace in arbitrary_word(),
        connections in vec(any_connection(), 1..8),
    ) {
        let mut set = PolicySet::new(MissingPolicies::Deny);
        let mut known: Vec<Authorization> = Vec::new();
        for policy in policies {
            known.retain(|other| other.key() != policy.key());
            known.push(policy.clone());
            set.insert(policy);
        }
        for index in removed {
            if !known.is_empty() {
                let policy = known.remove(index.index(known.len()));
                set.remove(&policy.key());
            }
        }
        let destination = Workload {
            namespace: namespace.as_str().into(),
            authorization_policies:
                named.iter().map(|name| format!("{namespace}/p{name}").into()).collect(),
            ..Workload::default()
        };
        for connection in connections {
            let decision = set.evaluate(&destination, &connection);
            prop_assert_eq!(decision.allowed, naive_evaluate(&known, &destination, &connection));
            // The policy that decided matches the connection.
            if let Some(key) = &decision.decided_by {
                let policy = set.by_name(&key.to_string()).unwrap();
                prop_assert!(matches_policy(policy, &connection));
                prop_assert_eq!(policy.action == Action::Allow, decision.allowed);
            }
            prop_assert_eq!(&set.explain(&destination, &connection).decision, &decision);
        }
    }
}
