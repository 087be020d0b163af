//! `ambit policy test` says who of those that the proxies have seen would be refused, and that is who is refused once
//! the policy is applied.

use ambit_system_tests::{until, with_waypoint};

const NO_ADMIN: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-admin, namespace: shop}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: waypoint}]
  action: DENY
  rules:
  - to: [{operation: {paths: [/nobody]}}]
  - from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]
    to: [{operation: {paths: [/admin*]}}]
";

const STRICT: &str = "
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict, namespace: shop}
spec: {mtls: {mode: STRICT}}
";

#[test]
fn who_would_be_refused_is_told_before_a_policy_is_applied() {
    let (mesh, _) = with_waypoint("");
    let admin = "http://server.shop/admin/users?a=b";
    mesh.get("shop/client", admin).ok();
    mesh.get(
        "legacy/client",
        &format!("http://{}:8080/", mesh.ip("shop/server")),
    )
    .ok();
    let directory = tempfile::tempdir().unwrap();
    let rehearse = |policy: &str| {
        let file = directory.path().join("policy.yaml");
        std::fs::write(&file, policy).unwrap();
        mesh.ambit(&["policy", "test", file.to_str().unwrap()])
    };
    // Lines are written when connections are over.
    until("the request is in the log", || {
        rehearse(NO_ADMIN).stdout.contains("GET /admin/users")
    });
    let said = rehearse(NO_ADMIN);
    let refused: Vec<_> = said
        .stdout
        .lines()
        .filter(|line| line.contains("shop/no-admin"))
        .collect();
    assert_eq!((said.code, refused.len()), (1, 1), "{}", said.stdout);
    for part in [
        "spiffe://cluster.local/ns/shop/sa/client",
        "GET /admin/users ",
        "rule 2 of a DENY policy matches",
    ] {
        assert!(refused[0].contains(part), "{part} in {}", said.stdout);
    }

    until("the plaintext connection is in the log", || {
        rehearse(STRICT)
            .stdout
            .contains("legacy/client (plaintext)")
    });
    let said = rehearse(STRICT);
    assert_eq!(said.code, 1);
    let client = "sa/client";
    assert!(
        !said.stdout.lines().any(|line| line.contains(client)),
        "{}",
        said.stdout
    );

    // Nobody is concerned by this one.
    let nobody = NO_ADMIN.replace("/admin*", "/other");
    let said = rehearse(&nobody);
    assert_eq!(said.code, 0, "{}", said.stdout);

    mesh.apply("policy", NO_ADMIN);
    until("it is so", || {
        mesh.get("shop/client", admin).body.starts_with("403")
    });
    // That is not the rehearsed policy's doing any more.
    let said = rehearse(NO_ADMIN);
    assert_eq!(said.code, 0, "{}", said.stdout);
}
