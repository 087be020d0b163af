//! Records of TLS origination at waypoints, by DestinationRules and BackendTLSPolicies, and the objects' conditions.

use ambit_k8s_api::Kind;
use ambit_model::{DestinationPolicy, DestinationTls, TlsClientFiles, TlsRoots};

use super::*;

const CART_RECORD: &str = "shop/wp to shop/cart.shop.svc.cluster.local";

fn rule(policy: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: r, namespace: shop}}\nspec: {{host: cart, trafficPolicy: {{{policy}}}}}\n"
    )
}

fn policy(name: &str, section: &str, validation: &str) -> String {
    let section = match section {
        "" => String::new(),
        section => format!(", sectionName: {section}"),
    };
    let number = name.len() % 10;
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy\nmetadata: {{name: {name}, namespace: shop, creationTimestamp: \"2026-01-01T00:00:0{number}Z\"}}\nspec: {{targetRefs: [{{group: '', kind: Service, name: cart{section}}}], validation: {{{validation}}}}}\n"
    )
}

fn ca_config_map(text: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: roots, namespace: shop}}\ndata: {{ca.crt: '{text}'}}\n"
    )
}

fn mesh_with(more: &str) -> TestMesh {
    TestMesh::from_yaml(&join_documents(&[
        CART_SERVICE,
        CART_POD,
        &gateway("wp", ""),
        more,
    ]))
}

fn port_policy(mesh: &TestMesh, port: u16) -> DestinationPolicy {
    let record = mesh.waypoint_destinations.get(CART_RECORD);
    record
        .map(|record| record.policy(port).clone())
        .unwrap_or_default()
}

fn published_tls(mesh: &TestMesh) -> DestinationTls {
    let policy = port_policy(mesh, 80);
    assert_eq!(policy.unsupported, None);
    DestinationTls::clone(&policy.tls.expect("TLS"))
}

/// Returns the status conditions of a BackendTLSPolicy at its single ancestor.
fn derived_status(mesh: &TestMesh, name: &str) -> String {
    let key = ObjectKey::new(Kind::BackendTLSPolicy, "shop", name);
    let derived_status = mesh.index.derived_status(&key).expect("a standing");
    let [part] = &derived_status.entries[..] else {
        panic!("one ancestor: {derived_status:?}");
    };
    let conditions = part.conditions.iter();
    let texts = conditions.map(|(name, condition)| {
        format!(
            "{name}={} {}: {}",
            condition.is_true, condition.reason, condition.message
        )
    });
    texts.collect::<Vec<_>>().join("\n")
}

#[test]
fn rule_originates_tls_with_its_settings() {
    let mesh = mesh_with(&rule("tls: {mode: SIMPLE}"));
    assert_eq!(published_tls(&mesh), DestinationTls::default());
    let mesh = mesh_with(&rule(
        "tls: {mode: MUTUAL, sni: Front.example, subjectAltNames: [a.example, 'spiffe://b/c'], caCertificates: /etc/certs/shop/ca, clientCertificate: /etc/certs/shop/x/cert, privateKey: /etc/certs/shop/key}",
    ));
    assert_eq!(
        published_tls(&mesh),
        DestinationTls {
            server_name: Some("front.example".into()),
            names: vec!["a.example".into(), "spiffe://b/c".into()],
            roots: TlsRoots::File("/etc/certs/shop/ca".into()),
            client: Some(TlsClientFiles {
                certificate: "/etc/certs/shop/x/cert".into(),
                key: "/etc/certs/shop/key".into(),
            }),
        }
    );
    assert_eq!(mesh.problems(), [""; 0]);
    // Without verification, which a condition names.
    let mesh = mesh_with(&rule(
        "tls: {mode: SIMPLE, insecureSkipVerify: true, subjectAltNames: [a.example]}",
    ));
    let unverified = DestinationTls {
        roots: TlsRoots::Unverified,
        ..DestinationTls::default()
    };
    assert_eq!(published_tls(&mesh), unverified);
    let problems = mesh.problems();
    assert!(
        problems[0].contains("insecureSkipVerify") && problems[0].contains("not verified"),
        "{problems:?}"
    );
    // Of one port only.
    let mesh = mesh_with(&rule(
        "portLevelSettings: [{port: {number: 80}, tls: {mode: SIMPLE}}]",
    ));
    assert!(port_policy(&mesh, 80).tls.is_some());
    assert_eq!(port_policy(&mesh, 81).tls, None);
}

#[test]
fn what_a_rule_cannot_have_lets_nothing_pass() {
    for wished in [
        "mode: SIMPLE, caCertificates: /etc/certs/bank/ca",
        "mode: SIMPLE, caCertificates: /etc/certs/shop/../bank/ca",
        "mode: SIMPLE, caCertificates: /etc/certs/shop/",
        "mode: SIMPLE, caCertificates: /etc/passwd",
        "mode: SIMPLE, caCertificates: /etc/certs/shop//ca",
        "mode: SIMPLE, credentialName: secret",
        "mode: SIMPLE, caCrl: /etc/certs/shop/crl",
        "mode: SIMPLE, sni: 'a b'",
        "mode: SIMPLE, subjectAltNames: ['a b']",
        "mode: MUTUAL, caCertificates: /etc/certs/shop/ca",
        "mode: MUTUAL, clientCertificate: /etc/certs/shop/a, privateKey: /etc/certs/bank/b",
    ] {
        let mesh = mesh_with(&rule(&format!("tls: {{{wished}}}")));
        let record = port_policy(&mesh, 80);
        assert!(record.unsupported.is_some(), "{wished}: {record:?}");
        assert_eq!(record.tls, None, "{wished}");
        let problems = mesh.problems();
        assert!(problems[0].contains("answered with 503"), "{problems:?}");
    }
    // A rule that cannot be used at all.
    for broken in [
        "tls: {mode: SIMPLE}, connectionPool: {tcp: {maxConnections: -1}}",
        "tls: {mode: MUTUAL}, portLevelSettings: [{port: {number: 70000}}]",
    ] {
        let mesh = mesh_with(&rule(broken));
        let record = port_policy(&mesh, 80);
        assert!(record.unsupported.is_some(), "{broken}: {record:?}");
    }
}

#[test]
fn a_policy_counts_in_place_of_a_rule_and_the_oldest_of_several() {
    let system = "wellKnownCACertificates: System";
    let mut mesh = mesh_with(&join_documents(&[
        &rule("tls: {mode: SIMPLE, sni: r.example}, connectionPool: {http: {maxRetries: 7}}"),
        &policy("aa", "", &format!("hostname: a.example, {system}")),
    ]));
    assert_eq!(
        published_tls(&mesh).server_name.as_deref(),
        Some("a.example")
    );
    assert_eq!(port_policy(&mesh, 80).limits.retries, 7);
    assert_eq!(
        derived_status(&mesh, "aa"),
        "Accepted=true Accepted: the policy is followed\nResolvedRefs=true ResolvedRefs: every reference is found"
    );
    mesh.apply(&policy("b", "", &format!("hostname: b.example, {system}")));
    assert_eq!(
        published_tls(&mesh).server_name.as_deref(),
        Some("b.example")
    );
    assert!(
        derived_status(&mesh, "aa")
            .starts_with("Accepted=false Conflicted: BackendTLSPolicy shop/b is followed")
    );
    // One for the port counts before it, however young.
    mesh.apply(&policy(
        "cccc",
        "http-web",
        &format!("hostname: c.example, {system}"),
    ));
    assert_eq!(
        published_tls(&mesh).server_name.as_deref(),
        Some("c.example")
    );
    let elsewhere = port_policy(&mesh, 81).tls.expect("TLS");
    assert_eq!(elsewhere.server_name.as_deref(), Some("b.example"));
    for name in ["cccc", "b", "aa"] {
        mesh.delete(Kind::BackendTLSPolicy, "shop", name);
    }
    assert_eq!(
        published_tls(&mesh).server_name.as_deref(),
        Some("r.example")
    );
}

#[test]
fn a_policy_that_cannot_be_followed_lets_nothing_pass() {
    let by_map =
        "hostname: a.example, caCertificateRefs: [{group: '', kind: ConfigMap, name: roots}]";
    let mut mesh = mesh_with(&policy("a", "", by_map));
    let why = port_policy(&mesh, 80).unsupported.unwrap();
    assert!(why.contains("ConfigMap shop/roots does not exist"), "{why}");
    let condition = derived_status(&mesh, "a");
    assert!(
        condition.starts_with("Accepted=false NoValidCACertificate"),
        "{condition}"
    );
    assert!(
        condition.contains("ResolvedRefs=false InvalidCACertificateRef"),
        "{condition}"
    );
    mesh.apply(&ca_config_map("-----BEGIN CERTIFICATE----- x"));
    assert!(
        matches!(published_tls(&mesh).roots, TlsRoots::Pem(text) if text.contains("CERTIFICATE----- x"))
    );
    mesh.apply(&ca_config_map("none"));
    assert!(port_policy(&mesh, 80).unsupported.is_some());
    mesh.apply(&ca_config_map("-----BEGIN CERTIFICATE----- y"));
    assert!(
        matches!(published_tls(&mesh).roots, TlsRoots::Pem(text) if text.contains("CERTIFICATE----- y"))
    );
    mesh.delete(Kind::ConfigMap, "shop", "roots");
    assert!(port_policy(&mesh, 80).unsupported.is_some());
    for (validation, reason) in [
        ("hostname: a.example", "Invalid"),
        (
            "hostname: 'a b', wellKnownCACertificates: System",
            "Invalid",
        ),
        (
            "hostname: a.example, wellKnownCACertificates: Mozilla",
            "Invalid",
        ),
        (
            "hostname: a.example, wellKnownCACertificates: System, subjectAltNames: [{type: URI, uri: x}]",
            "Invalid",
        ),
        (
            "hostname: a.example, wellKnownCACertificates: System, other: 1",
            "Invalid",
        ),
        (
            "hostname: a.example, caCertificateRefs: [{group: '', kind: Secret, name: roots}]",
            "NoValidCACertificate",
        ),
    ] {
        mesh.apply(&policy("a", "", validation));
        assert!(port_policy(&mesh, 80).unsupported.is_some(), "{validation}");
        let condition = derived_status(&mesh, "a");
        assert!(
            condition.starts_with(&format!("Accepted=false {reason}: ")),
            "{condition}"
        );
    }
}

/// Returns a waypoint in another namespace, which forwards no requests to the service `cart`.
fn waypoint_in_other_namespace() -> String {
    gateway("far", "").replace("namespace: shop", "namespace: bank")
}

#[test]
fn every_waypoint_gets_rules_that_originate_tls() {
    const FAR_RECORD: &str = "bank/far to shop/cart.shop.svc.cluster.local";
    let mut mesh = mesh_with(&rule("connectionPool: {http: {maxRetries: 1}}"));
    mesh.apply(&waypoint_in_other_namespace());
    assert!(!mesh.waypoint_destinations.contains_key(FAR_RECORD));
    for wished in [
        "tls: {mode: SIMPLE}",
        "portLevelSettings: [{port: {number: 80}, tls: {mode: SIMPLE}}]",
        // Nothing may be sent, for any caller.
        "tls: {mode: SIMPLE, credentialName: secret}",
    ] {
        mesh.apply(&rule(wished));
        let record = mesh.waypoint_destinations[FAR_RECORD].policy(80);
        assert!(
            record.tls.is_some() || record.unsupported.is_some(),
            "{wished}"
        );
        // Whether the rule or the waypoint was there first.
        mesh.delete(Kind::Gateway, "bank", "far");
        assert!(
            !mesh.waypoint_destinations.contains_key(FAR_RECORD),
            "{wished}"
        );
        mesh.apply(&waypoint_in_other_namespace());
        assert!(
            mesh.waypoint_destinations.contains_key(FAR_RECORD),
            "{wished}"
        );
    }
    // A rule for its own namespace alone is for no other's waypoints.
    let own = rule("tls: {mode: SIMPLE}").replace("host: cart", "host: cart, exportTo: ['.']");
    mesh.apply(&own);
    assert!(!mesh.waypoint_destinations.contains_key(FAR_RECORD));
    assert!(published_tls(&mesh).names.is_empty());
    mesh.apply(&policy(
        "p",
        "",
        "hostname: cart.example, wellKnownCACertificates: System",
    ));
    let record = mesh.waypoint_destinations[FAR_RECORD].policy(80);
    assert!(record.tls.is_some());
    mesh.delete(Kind::Gateway, "bank", "far");
    mesh.apply(&waypoint_in_other_namespace());
    assert!(mesh.waypoint_destinations.contains_key(FAR_RECORD));
    mesh.delete(Kind::BackendTLSPolicy, "shop", "p");
    assert!(!mesh.waypoint_destinations.contains_key(FAR_RECORD));
}
