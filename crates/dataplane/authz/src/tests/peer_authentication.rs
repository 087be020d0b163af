//! What PeerAuthentication alone decides.

use super::*;

const STRICT: &str = "istio_converted_static_strict";
const OF_PORTS: &str = "converted_peer_authentication_ports";

fn no_plaintext() -> Match {
    Match {
        not_principals: vec![StringMatch::Presence],
        ..Match::default()
    }
}

fn selected(name: &str, action: Action, matching: Match) -> Authorization {
    Authorization {
        scope: Scope::WorkloadSelector,
        ..policy(name, action, when(matching))
    }
}

fn naming(names: &[&str]) -> Workload {
    Workload {
        authorization_policies: names
            .iter()
            .map(|name| format!("ns/{name}").into())
            .collect(),
        ..destination()
    }
}

#[test]
fn strict_refuses_plaintext_and_no_other_policy_has_a_say() {
    let set = set(vec![
        selected(STRICT, Action::Deny, no_plaintext()),
        selected("no-a", Action::Deny, principal("a")),
        selected("nobody", Action::Deny, no_plaintext()),
        policy("only-b", Action::Allow, when(principal("b"))),
    ]);
    let strict = naming(&[STRICT, "no-a"]);
    let refused = set.evaluate_peer_authentication(&strict, &plaintext());
    assert_eq!(refused.decided_by, Some(key(STRICT)));
    assert!(!refused.allowed);
    assert!(
        set.evaluate_peer_authentication(&strict, &from("a"))
            .allowed
    );
    assert!(!set.evaluate(&strict, &from("a")).allowed);
    let permissive = naming(&["no-a", "nobody"]);
    let allowed = set.evaluate_peer_authentication(&permissive, &plaintext());
    assert!(allowed.allowed);
    assert_eq!(allowed.why, Why::NoPolicies);
}

#[test]
fn the_policy_of_one_object_counts_for_its_ports() {
    let of_8080 = Match {
        destination_ports: vec![8080],
        ..no_plaintext()
    };
    let set = set(vec![selected(OF_PORTS, Action::Deny, of_8080)]);
    let destination = naming(&[OF_PORTS]);
    let to = |port| Connection {
        destination: ([10, 0, 0, 2], port).into(),
        ..plaintext()
    };
    let decide = |port| set.evaluate_peer_authentication(&destination, &to(port));
    assert!(!decide(8080).allowed);
    assert_eq!(decide(8081).why, Why::NoAllowPolicies);
}

#[test]
fn one_that_is_not_known_refuses_and_one_of_another_kind_does_not() {
    let set = set(vec![]);
    let coming = set.evaluate_peer_authentication(&naming(&["coming", STRICT]), &from("a"));
    let name = ArcStr::from(format!("ns/{STRICT}"));
    assert_eq!(coming.why, Why::MissingPolicy(name));
    assert!(!coming.allowed);
    let other = set.evaluate_peer_authentication(&naming(&["coming"]), &from("a"));
    assert!(other.allowed);
}
