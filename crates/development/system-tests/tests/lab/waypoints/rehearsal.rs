//! Tests that `ambit policy test` lists the observed callers that would be denied, and that these
//! are denied once the policy is applied.

use ambit_system_tests::{CLIENT_AND_SERVER, LogSource, Mesh, options, wait_until, with_waypoint};

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

const TESTED_POLICY: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: trial, namespace: shop, annotations: {istio.io/dry-run: 'true'}}
spec:
  selector: {matchLabels: {app: server}}
  action: DENY
  rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]}]
";

#[test]
fn rehearsal_lists_callers_that_would_be_denied() {
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
    // Log lines are written when connections are over.
    wait_until("the request is in the log", || {
        rehearse(NO_ADMIN).stdout.contains("GET /admin/users")
    });
    let report = rehearse(NO_ADMIN);
    let refused: Vec<_> = report
        .stdout
        .lines()
        .filter(|line| line.contains("shop/no-admin"))
        .collect();
    assert_eq!((report.code, refused.len()), (1, 1), "{}", report.stdout);
    for part in [
        "spiffe://cluster.local/ns/shop/sa/client",
        "GET /admin/users ",
        "rule 2 of a DENY policy matches",
    ] {
        assert!(refused[0].contains(part), "{part} in {}", report.stdout);
    }

    wait_until("the plaintext connection is in the log", || {
        rehearse(STRICT)
            .stdout
            .contains("legacy/client (plaintext)")
    });
    let report = rehearse(STRICT);
    assert_eq!(report.code, 1);
    let client = "sa/client";
    assert!(
        !report.stdout.lines().any(|line| line.contains(client)),
        "{}",
        report.stdout
    );

    // An open connection has no line yet.
    let echo = std::net::SocketAddr::new(mesh.ip("shop/server"), 9000);
    let mut open = mesh.dial("legacy/client", echo).unwrap();
    open.exchange_line("hello").unwrap();
    let report = rehearse(STRICT);
    let is_open =
        |line: &str| line.contains("legacy/client (plaintext)") && line.contains("port 9000");
    assert!(report.stdout.lines().any(is_open), "{}", report.stdout);
    drop(open);

    // Without logs, metrics have callers and servers, and no requests.
    let scrape = mesh.get(
        "legacy/client",
        &format!("http://{}:15020/metrics", mesh.ip("shop/waypoint")),
    );
    let metrics = directory.path().join("metrics");
    std::fs::write(&metrics, &scrape.body).unwrap();
    let by_metrics = |policy: &str| {
        let file = directory.path().join("policy.yaml");
        std::fs::write(&file, policy).unwrap();
        let (file, metrics) = (file.to_str().unwrap(), metrics.to_str().unwrap());
        mesh.ambit(&["policy", "test", file, "--metrics", metrics])
    };
    let report = by_metrics(NO_ADMIN);
    assert_eq!(report.code, 0, "{}", report.stdout);
    assert!(
        report
            .stdout
            .contains("fields that metrics do not contain: paths"),
        "{}",
        report.stdout
    );
    let anything = NO_ADMIN.replace("\n    to: [{operation: {paths: [/admin*]}}]", "");
    let report = by_metrics(&anything);
    let refused = |line: &str| line.contains("sa/client") && line.contains("requests, by metrics");
    assert!(
        report.code == 1 && report.stdout.lines().any(refused),
        "{}",
        report.stdout
    );

    // This policy affects no observed caller.
    let nobody = NO_ADMIN.replace("/admin*", "/other");
    // For traffic other than HTTP, a rule with only paths counts as matching.
    let nobody = nobody.replace("  - to: [{operation: {paths: [/nobody]}}]\n", "");
    let report = rehearse(&nobody);
    assert_eq!(report.code, 0, "{}", report.stdout);

    mesh.apply("policy", NO_ADMIN);
    wait_until("it is so", || {
        mesh.get("shop/client", admin).body.starts_with("403")
    });
    // This denial is not caused by the rehearsed policy any more.
    let report = rehearse(NO_ADMIN);
    assert_eq!(report.code, 0, "{}", report.stdout);
}

#[test]
fn dry_run_policy_is_counted_logged_and_rehearsed() {
    let mut options = options();
    let sent = "AMBIENT_ENABLE_DRY_RUN_AUTHORIZATION_POLICY";
    options.env.insert(sent.into(), "true".into());
    let mesh = Mesh::up_with(CLIENT_AND_SERVER, options);
    mesh.wait_until_captured("shop/server", true);
    mesh.wait_until_captured("shop/client", true);
    let server = format!("http://{}:8080/", mesh.ip("shop/server"));
    let node = mesh.pod("shop/server").node;
    let counted = || {
        let metrics = mesh.proxy_metrics(&node);
        let series = "ambit_connections_dry_run_denied_total{policy=\"shop/trial\"} ";
        let value = metrics.lines().find_map(|line| line.strip_prefix(series));
        value.map(str::to_owned)
    };
    mesh.apply("trial", TESTED_POLICY);
    wait_until("it is counted whom it would refuse", || {
        mesh.get("shop/client", &server).ok();
        counted().is_some()
    });
    let before = counted();
    mesh.get("legacy/client", &server).ok();
    assert_eq!(counted(), before);
    let proxies = LogSource::Daemon {
        name: "proxy".to_owned(),
        node: None,
    };
    let log = mesh.client().log_text(proxies).unwrap();
    let logged = |line: &str| line.contains("would refuse") && line.contains("shop/trial");
    assert!(log.lines().any(logged), "{log}");
    let mut report = mesh.ambit(&["policy", "test", "--enforce-dry-run"]);
    wait_until("the connections are in the log", || {
        report = mesh.ambit(&["policy", "test", "--enforce-dry-run"]);
        report.code == 1
    });
    let refused = report
        .stdout
        .lines()
        .filter(|line| line.contains("shop/trial"));
    let refused: Vec<_> = refused.collect();
    assert!(
        refused.len() == 1 && refused[0].contains("sa/client"),
        "{}",
        report.stdout
    );
}
