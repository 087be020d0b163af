//! PeerAuthentications, tested by their effect on connections without an identity.

use std::collections::BTreeSet;

use ambit_k8s_api::Kind;
use ambit_model::{Match, StringMatch};

use super::*;

const PORTS: [u16; 3] = [8080, 9000, 9001];

fn peer_auth(namespace: &str, name: &str, spec: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {spec}\n"
    )
}

/// Returns the ports of the pod on which the published policies refuse plaintext.
fn refused_ports(mesh: &TestMesh) -> BTreeSet<u16> {
    let join_names = &mesh.pod("cart-1").authorization_policies;
    let policies: Vec<_> = join_names.iter().map(|name| mesh.policy(name)).collect();
    let matches = |one: &Match, port: u16| {
        let presence = [StringMatch::Presence];
        assert!(one.not_principals.is_empty() || one.not_principals == presence);
        (one.destination_ports.is_empty() || one.destination_ports.contains(&port))
            && !one.not_destination_ports.contains(&port)
    };
    let denies = |policy: &Authorization, port: u16| {
        policy.rules.iter().any(|rule| {
            let about_plaintext = rule
                .iter()
                .flatten()
                .any(|one| !one.not_principals.is_empty());
            assert!(
                about_plaintext,
                "a rule that would refuse identities too: {rule:?}"
            );
            rule.iter()
                .all(|clause| clause.iter().any(|one| matches(one, port)))
        })
    };
    PORTS
        .into_iter()
        .filter(|port| policies.iter().any(|policy| denies(policy, *port)))
        .collect()
}

fn check_refused_ports(documents: &[String], expected: &[u16]) {
    let texts: Vec<&str> = std::iter::once(CART_POD)
        .chain(documents.iter().map(String::as_str))
        .collect();
    let mesh = TestMesh::from_yaml(&join_documents(&texts));
    assert_eq!(
        refused_ports(&mesh),
        expected.iter().copied().collect(),
        "{documents:?}"
    );
    // The same in the other order, one at a time.
    let mut mesh = TestMesh::empty();
    for text in texts.iter().rev() {
        mesh.apply(text);
    }
    assert_eq!(
        refused_ports(&mesh),
        expected.iter().copied().collect(),
        "reversed: {documents:?}"
    );
}

const ALL_PORTS: &[u16] = &PORTS;

#[test]
fn levels_inherit() {
    let mesh = |mode: &str| {
        peer_auth(
            "istio-system",
            "mesh",
            &format!("{{mtls: {{mode: {mode}}}}}"),
        )
    };
    let namespace = |mode: &str| peer_auth("shop", "ns", &format!("{{mtls: {{mode: {mode}}}}}"));
    let workload = |mode: &str| {
        peer_auth(
            "shop",
            "w",
            &format!("{{selector: {{matchLabels: {{app: cart}}}}, mtls: {{mode: {mode}}}}}"),
        )
    };
    check_refused_ports(&[], &[]);
    check_refused_ports(&[mesh("STRICT")], ALL_PORTS);
    check_refused_ports(&[mesh("PERMISSIVE")], &[]);
    check_refused_ports(&[mesh("UNSET")], &[]);
    check_refused_ports(&[mesh("STRICT"), namespace("PERMISSIVE")], &[]);
    check_refused_ports(&[mesh("STRICT"), namespace("DISABLE")], &[]);
    check_refused_ports(&[mesh("STRICT"), namespace("UNSET")], ALL_PORTS);
    check_refused_ports(&[namespace("STRICT")], ALL_PORTS);
    check_refused_ports(&[namespace("STRICT"), workload("PERMISSIVE")], &[]);
    check_refused_ports(&[namespace("STRICT"), workload("UNSET")], ALL_PORTS);
    check_refused_ports(
        &[
            mesh("PERMISSIVE"),
            namespace("PERMISSIVE"),
            workload("STRICT"),
        ],
        ALL_PORTS,
    );
    check_refused_ports(&[peer_auth("other", "ns", "{mtls: {mode: STRICT}}")], &[]);
    check_refused_ports(
        &[peer_auth(
            "shop",
            "w",
            "{selector: {matchLabels: {app: other}}, mtls: {mode: STRICT}}",
        )],
        &[],
    );
    check_refused_ports(
        &[mesh("STRICT"), peer_auth("shop", "empty", "{}")],
        ALL_PORTS,
    );
}

#[test]
fn ports_differ_from_their_workload() {
    let ports = |mode: &str, ports: &str| {
        let mtls = if mode.is_empty() {
            String::new()
        } else {
            format!("mtls: {{mode: {mode}}}, ")
        };
        peer_auth(
            "shop",
            "w",
            &format!("{{selector: {{matchLabels: {{app: cart}}}}, {mtls}portLevelMtls: {ports}}}"),
        )
    };
    check_refused_ports(
        &[ports("STRICT", "{9000: {mode: PERMISSIVE}}")],
        &[8080, 9001],
    );
    check_refused_ports(
        &[ports(
            "STRICT",
            "{9000: {mode: PERMISSIVE}, 9001: {mode: DISABLE}}",
        )],
        &[8080],
    );
    check_refused_ports(&[ports("PERMISSIVE", "{9000: {mode: STRICT}}")], &[9000]);
    check_refused_ports(
        &[ports(
            "DISABLE",
            "{9000: {mode: STRICT}, 9001: {mode: STRICT}}",
        )],
        &[9000, 9001],
    );
    check_refused_ports(&[ports("STRICT", "{9000: {mode: STRICT}}")], ALL_PORTS);
    check_refused_ports(&[ports("STRICT", "{9000: {mode: UNSET}}")], ALL_PORTS);
    check_refused_ports(&[ports("", "{9000: {mode: STRICT}}")], &[9000]);
}

#[test]
fn ports_differ_from_what_is_inherited() {
    let mesh = || peer_auth("istio-system", "mesh", "{mtls: {mode: STRICT}}");
    let workload = |spec: &str| {
        peer_auth(
            "shop",
            "w",
            &format!("{{selector: {{matchLabels: {{app: cart}}}}, {spec}}}"),
        )
    };
    // A strict port of a permissive workload, the mesh strict, the namespace silent.
    check_refused_ports(
        &[
            mesh(),
            workload("mtls: {mode: PERMISSIVE}, portLevelMtls: {9000: {mode: STRICT}}"),
        ],
        &[9000],
    );
    // A permissive port of a silent workload, the namespace silent too.
    let silent = peer_auth("shop", "ns", "{mtls: {mode: UNSET}}");
    check_refused_ports(
        &[
            mesh(),
            silent,
            workload("portLevelMtls: {9000: {mode: PERMISSIVE}}"),
        ],
        &[8080, 9001],
    );
    check_refused_ports(
        &[
            mesh(),
            workload("portLevelMtls: {9000: {mode: PERMISSIVE}}"),
        ],
        &[8080, 9001],
    );
    // Disabled is as good as permissive.
    check_refused_ports(
        &[mesh(), workload("portLevelMtls: {9000: {mode: DISABLE}}")],
        &[8080, 9001],
    );
    let namespace = peer_auth("shop", "ns", "{mtls: {mode: STRICT}}");
    check_refused_ports(
        &[
            namespace,
            workload("portLevelMtls: {9000: {mode: DISABLE}}"),
        ],
        &[8080, 9001],
    );
}

#[test]
fn the_oldest_of_a_level_counts() {
    let aged = |name: &str, mode: &str, day: u8| {
        peer_auth("shop", name, &format!("{{mtls: {{mode: {mode}}}}}")).replace(
            "namespace: shop}",
            &format!("namespace: shop, creationTimestamp: \"2026-01-{day:02}T00:00:00Z\"}}"),
        )
    };
    check_refused_ports(&[aged("a", "STRICT", 2), aged("b", "PERMISSIVE", 1)], &[]);
    check_refused_ports(
        &[aged("a", "PERMISSIVE", 2), aged("b", "STRICT", 1)],
        ALL_PORTS,
    );
}

#[test]
fn policy_names_are_istios_and_the_static_policy_exists() {
    let mut mesh = TestMesh::from_yaml(CART_POD);
    let other = peer_auth("other", "x", "{mtls: {mode: PERMISSIVE}}");
    assert_eq!(
        mesh.apply(&other),
        ["istio-system/istio_converted_static_strict"]
    );
    let strict = peer_auth(
        "shop",
        "w",
        "{selector: {matchLabels: {app: cart}}, mtls: {mode: STRICT}, portLevelMtls: {9000: {mode: PERMISSIVE}}}",
    );
    assert_eq!(
        mesh.apply(&strict),
        [
            "c1//Pod/shop/cart-1",
            "shop/converted_peer_authentication_w"
        ]
    );
    assert_eq!(
        mesh.pod("cart-1").authorization_policies,
        ["shop/converted_peer_authentication_w"]
    );
    assert_eq!(
        mesh.delete(Kind::PeerAuthentication, "shop", "w"),
        [
            "c1//Pod/shop/cart-1",
            "-shop/converted_peer_authentication_w"
        ]
    );
    assert_eq!(
        mesh.delete(Kind::PeerAuthentication, "other", "x"),
        ["-istio-system/istio_converted_static_strict"]
    );
}

#[test]
fn what_cannot_work_is_refused_or_noted() {
    for (spec, field) in [
        (
            "{portLevelMtls: {9000: {mode: STRICT}}}",
            "spec.portLevelMtls[9000]",
        ),
        (
            "{selector: {matchLabels: {a: b}}, portLevelMtls: {http: {mode: STRICT}}}",
            "spec.portLevelMtls[http]",
        ),
        (
            "{selector: {matchLabels: {a: b}}, portLevelMtls: {\"70000\": {mode: STRICT}}}",
            "spec.portLevelMtls[70000]",
        ),
    ] {
        let mut mesh = TestMesh::from_yaml(CART_POD);
        mesh.apply(&peer_auth("shop", "w", spec));
        let problem = &mesh.problems()[0];
        assert!(
            problem.starts_with(&format!("PeerAuthentication shop/w: {field}: ")),
            "{problem}"
        );
        assert!(
            problem.ends_with("; everything in its scope is refused until it is corrected"),
            "{problem}"
        );
        // Its scope is the namespace without a selector.
        let all = !spec.contains("selector");
        assert_eq!(!refused_ports(&mesh).is_empty(), all, "{spec}");
    }
    let mesh = TestMesh::from_yaml(&join_documents(&[
        CART_POD,
        &peer_auth(
            "istio-system",
            "w",
            "{selector: {matchLabels: {app: cart}}, mtls: {mode: STRICT}}",
        ),
    ]));
    assert!(refused_ports(&mesh).is_empty());
    assert!(mesh.problems()[0].contains("spec.selector"));
}

#[test]
fn an_empty_selector_selects_the_namespace() {
    for selector in ["selector: {matchLabels: {}}, ", "selector: {}, ", ""] {
        let spec = format!("{{{selector}mtls: {{mode: STRICT}}}}");
        let mesh =
            TestMesh::from_yaml(&join_documents(&[CART_POD, &peer_auth("shop", "w", &spec)]));
        assert!(
            !refused_ports(&mesh).is_empty(),
            "{spec}: {:?}",
            mesh.problems()
        );
        assert_eq!(mesh.problems(), Vec::<String>::new());
    }
}
