//! Trust domains in the MeshConfig: which are accepted, and which principals policies match.

use std::collections::BTreeSet;

use ambit_k8s_api::Kind;
use ambit_model::{Action, ArcStr, HttpValue, StringMatch};

use super::{
    mesh_config::{GATEWAY, mesh_config, problems},
    *,
};

const PEM: &str = "-----BEGIN CERTIFICATE-----\\nAAAA\\n-----END CERTIFICATE-----\\n";

fn pem(more: &str) -> String {
    format!("caCertificates:\n- pem: \"{PEM}\"\n  {more}")
}

fn policy(kind: &str, target: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: p, namespace: shop}}\nspec:\n  \
         action: {kind}\n{target}  rules:\n  - from: [{{source: {{principals: [cluster.local/ns/a/sa/b, west/ns/a/sa/b], notPrincipals: [old/ns/a/*]}}}}]\n    \
         when: [{{key: source.principal, values: [old/ns/c/sa/d], notValues: [\"*\"]}}]\n  \
         - from: [{{source: {{principals: [old/*], trustDomains: [old]}}}}]\n"
    )
}

fn join_matches(all: &[StringMatch]) -> String {
    let all = all.iter().map(|one| match one {
        StringMatch::Exact(text) => text.to_string(),
        StringMatch::Prefix(text) => format!("{text}*"),
        StringMatch::Suffix(text) => format!("*{text}"),
        StringMatch::Presence => "*".to_owned(),
    });
    all.collect::<Vec<_>>().join(" ")
}

/// Returns `principals` and `not_principals` of each match in a policy's rules.
fn principals(policy: &Authorization) -> Vec<[String; 2]> {
    let matches = policy.rules.iter().flatten().flatten();
    let both = matches.map(|one| {
        [
            join_matches(&one.principals),
            join_matches(&one.not_principals),
        ]
    });
    both.collect()
}

#[test]
fn node_proxies_match_callers_under_all_names_of_the_trust_domain() {
    for kind in ["ALLOW", "DENY"] {
        let mut mesh = TestMesh::from_yaml(&policy(kind, ""));
        let written = principals(mesh.policy("shop/p"));
        let as_it_is = [
            ["cluster.local/ns/a/sa/b west/ns/a/sa/b", "old/ns/a/*"],
            ["old/ns/c/sa/d", "*"],
            ["old/*", ""],
            ["old/*", ""],
        ];
        assert_eq!(written, as_it_is);
        let changed = mesh.apply(&mesh_config("trustDomainAliases: [old]"));
        assert_eq!(changed, ["shop/p"]);
        let expected = [
            [
                "cluster.local/ns/a/sa/b old/ns/a/sa/b west/ns/a/sa/b",
                "old/ns/a/* cluster.local/ns/a/*",
            ],
            ["old/ns/c/sa/d cluster.local/ns/c/sa/d", "*"],
            // Trust domains by themselves are compared as they are written.
            ["old/* cluster.local/*", ""],
            ["old/*", ""],
        ];
        assert_eq!(principals(mesh.policy("shop/p")), expected);
        let action = mesh.policy("shop/p").action;
        assert_eq!(action == Action::Deny, kind == "DENY");
        mesh.delete(Kind::ConfigMap, "istio-system", "istio");
        assert_eq!(principals(mesh.policy("shop/p")), as_it_is);
    }
}

#[test]
fn waypoints_match_callers_under_all_names_of_the_trust_domain() {
    let target = "  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: wp}]\n";
    let mut mesh = TestMesh::from_yaml(&join_documents(&[GATEWAY, &policy("DENY", target)]));
    let of = |mesh: &TestMesh| {
        let rules = &mesh.waypoint_policies["shop/wp shop/p"].rules;
        let [first, second] = &rules[..] else {
            panic!("{rules:?}")
        };
        let values = first.conditions[0].values.iter().map(|one| match one {
            HttpValue::Text(text) => text.clone(),
            other => panic!("{other:?}"),
        });
        [
            join_matches(&first.sources[0].principals),
            join_matches(&first.sources[0].not_principals),
            join_matches(&values.collect::<Vec<_>>()),
            join_matches(&second.sources[0].principals),
            join_matches(&second.sources[0].trust_domains),
        ]
    };
    let written = of(&mesh);
    mesh.apply(&mesh_config("trustDomainAliases: [old]"));
    assert_eq!(
        of(&mesh),
        [
            "cluster.local/ns/a/sa/b old/ns/a/sa/b west/ns/a/sa/b",
            "old/ns/a/* cluster.local/ns/a/*",
            "old/ns/c/sa/d cluster.local/ns/c/sa/d",
            "old/* cluster.local/*",
            "old",
        ]
    );
    mesh.apply(&mesh_config("trustDomainAliases: []"));
    assert_eq!(of(&mesh), written);
}

#[test]
fn cluster_local_means_the_meshs_own_trust_domain() {
    let own = MeshConfig {
        trust_domain: "td".into(),
        ..MeshConfig::default()
    };
    let mut mesh = TestMesh::with_config(own);
    mesh.apply(&policy("ALLOW", ""));
    let first = |mesh: &TestMesh| principals(mesh.policy("shop/p"))[0][0].clone();
    let expanded = "cluster.local/ns/a/sa/b td/ns/a/sa/b west/ns/a/sa/b";
    assert_eq!(first(&mesh), expanded);
    // A trust domain with roots of its own belongs to another mesh.
    mesh.apply(&mesh_config(&pem("trustDomains: [cluster.local]")));
    assert_eq!(first(&mesh), "cluster.local/ns/a/sa/b west/ns/a/sa/b");
}

#[test]
fn roots_are_accepted_for_the_trust_domains_that_they_name() {
    let mut mesh = TestMesh::empty();
    let is_none = |mesh: &TestMesh| {
        mesh.index.view().accepted_trust_domains() == AcceptedTrustDomains::default()
    };
    assert!(is_none(&mesh));
    mesh.apply(&mesh_config(&format!(
        "trustDomainAliases: [old]\n{}\n- pem: \"{PEM}\"\n- spiffeBundleUrl: https://east/bundle\n  trustDomains: [east]",
        pem("trustDomains: [west, north]")
    )));
    assert_eq!(problems(&mesh), [""; 0]);
    let accepted = mesh.index.view().accepted_trust_domains();
    let names = BTreeSet::from(["cluster.local".into(), "old".into()]);
    assert_eq!(accepted.aliases, names);
    let domains: Vec<_> = accepted.roots.keys().map(ArcStr::as_str).collect();
    assert_eq!(domains, ["cluster.local", "north", "west"]);
    assert_eq!(
        accepted.pending_trust_domains,
        BTreeSet::from(["east".into()])
    );
    // The bundle is fetched, and is the domain's; a failure is named and takes nothing back.
    let sources: Vec<_> = mesh.index.view().key_sources().into_iter().collect();
    assert_eq!(sources.len(), 1);
    assert_eq!(
        (sources[0].url.as_str(), sources[0].format),
        ("https://east/bundle", KeyFormat::TrustBundle)
    );
    let state = |last_error: Option<&str>| KeySetState {
        keys: Some("roots".into()),
        last_error: last_error.map(Into::into),
    };
    for trouble in [None, Some("no answer")] {
        mesh.index.set_keys(&sources[0], state(trouble));
        mesh.flush();
        let accepted = mesh.index.view().accepted_trust_domains();
        assert_eq!(accepted.roots["east"], [ArcStr::from("roots")]);
        assert!(accepted.pending_trust_domains.is_empty());
    }
    let at = "Warning data.mesh.caCertificates[2].spiffeBundleUrl";
    assert_eq!(problems(&mesh), [at]);
    mesh.delete(Kind::ConfigMap, "istio-system", "istio");
    assert!(is_none(&mesh) && mesh.index.view().key_sources().is_empty());
}

#[test]
fn bad_trust_domains_keep_the_last_good_ones() {
    let mut mesh = TestMesh::from_yaml(&mesh_config("trustDomainAliases: [old]"));
    for (bad, field) in [
        ("trustDomainAliases: old", "trustDomainAliases"),
        (
            "trustDomainAliases: [a, 'spiffe://b']",
            "trustDomainAliases[1]",
        ),
        ("trustDomainAliases: [A]", "trustDomainAliases[0]"),
        ("caCertificates: {}", "caCertificates"),
        ("caCertificates: [{}]", "caCertificates[0]"),
        ("caCertificates: [{pem: text}]", "caCertificates[0].pem"),
        ("caCertificates: [{pem: 1}]", "caCertificates[0].pem"),
        (
            "caCertificates: [{spiffeBundleUrl: 'http://a/b'}]",
            "caCertificates[0].spiffeBundleUrl",
        ),
        (&pem("spiffeBundleUrl: 'https://a/b'"), "caCertificates[0]"),
        (
            &pem("trustDomains: ['*']"),
            "caCertificates[0].trustDomains[0]",
        ),
    ] {
        mesh.apply(&mesh_config(bad));
        assert_eq!(problems(&mesh), [format!("Error data.mesh.{field}")]);
        let accepted = mesh.index.view().accepted_trust_domains();
        assert!(accepted.aliases.contains("old"), "{bad}");
    }
    // Roots for signers are used for nobody.
    mesh.apply(&mesh_config(&pem("certSigners: [a]")));
    assert_eq!(
        problems(&mesh),
        ["Warning data.mesh.caCertificates[0].certSigners"]
    );
    assert!(mesh.index.view().accepted_trust_domains().roots.is_empty());
}

#[test]
fn entries_do_not_lend_identities_of_aliases() {
    let entry = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: claim, namespace: evil}\n\
                 spec: {hosts: [claim.example.com], resolution: DNS, ports: [{number: 80, name: http}],\n  \
                 subjectAltNames: ['spiffe://old/ns/shop/sa/cart', 'spiffe://old/ns/evil/sa/cart']}\n";
    let mut mesh = TestMesh::from_yaml(entry);
    let names = |mesh: &TestMesh| {
        mesh.service("evil/claim.example.com")
            .subject_alt_names
            .len()
    };
    assert_eq!(names(&mesh), 2);
    mesh.apply(&mesh_config("trustDomainAliases: [old]"));
    assert_eq!(names(&mesh), 1);
    mesh.apply(&mesh_config(""));
    assert_eq!(names(&mesh), 2);
}
