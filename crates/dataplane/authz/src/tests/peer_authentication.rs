//! Tests of decisions by PeerAuthentication alone.

use super::*;

const STRICT: &str = "istio_converted_static_strict";
const PORT_POLICY: &str = "converted_peer_authentication_ports";

fn plaintext_match() -> Match {
    Match {
        not_principals: vec![StringMatch::Presence],
        ..Match::default()
    }
}

fn selected_by_workload(name: &str, action: Action, matching: Match) -> Authorization {
    Authorization {
        scope: Scope::WorkloadSelector,
        ..policy(name, action, match_clause(matching))
    }
}

fn workload_naming(names: &[&str]) -> Workload {
    Workload {
        authorization_policies: names
            .iter()
            .map(|name| format!("ns/{name}").into())
            .collect(),
        ..destination_workload()
    }
}

#[test]
fn only_peer_authentication_decides_and_strict_refuses_plaintext() {
    let set = policy_set(vec![
        selected_by_workload(STRICT, Action::Deny, plaintext_match()),
        selected_by_workload("no-a", Action::Deny, principal_match("a")),
        selected_by_workload("nobody", Action::Deny, plaintext_match()),
        policy("only-b", Action::Allow, match_clause(principal_match("b"))),
    ]);
    let strict = workload_naming(&[STRICT, "no-a"]);
    let refused = set.evaluate_peer_authentication(&strict, &plaintext_connection());
    assert_eq!(refused.decided_by, Some(policy_key(STRICT)));
    assert!(!refused.allowed);
    assert!(
        set.evaluate_peer_authentication(&strict, &connection_from("a"))
            .allowed
    );
    assert!(!set.evaluate(&strict, &connection_from("a")).allowed);
    let permissive = workload_naming(&["no-a", "nobody"]);
    let allowed = set.evaluate_peer_authentication(&permissive, &plaintext_connection());
    assert!(allowed.allowed);
    assert_eq!(allowed.reason, DecisionReason::NoPolicies);
}

#[test]
fn port_level_policy_applies_to_its_ports_only() {
    let of_8080 = Match {
        destination_ports: vec![8080],
        ..plaintext_match()
    };
    let set = policy_set(vec![selected_by_workload(
        PORT_POLICY,
        Action::Deny,
        of_8080,
    )]);
    let destination = workload_naming(&[PORT_POLICY]);
    let to = |port| Connection {
        destination: ([10, 0, 0, 2], port).into(),
        ..plaintext_connection()
    };
    let decide = |port| set.evaluate_peer_authentication(&destination, &to(port));
    assert!(!decide(8080).allowed);
    assert_eq!(decide(8081).reason, DecisionReason::NoAllowPolicies);
}

#[test]
fn missing_peer_authentication_refuses_and_other_missing_policies_do_not() {
    let set = policy_set(vec![]);
    let coming = set
        .evaluate_peer_authentication(&workload_naming(&["coming", STRICT]), &connection_from("a"));
    let name = ArcStr::from(format!("ns/{STRICT}"));
    assert_eq!(coming.reason, DecisionReason::MissingPolicy(name));
    assert!(!coming.allowed);
    let other =
        set.evaluate_peer_authentication(&workload_naming(&["coming"]), &connection_from("a"));
    assert!(other.allowed);
}
