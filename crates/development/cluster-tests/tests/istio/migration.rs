//! Tests of each step of the book's page about migrations, under load.

use ambit_cluster_tests::{GetOutcome, Load, LoadOutcome, TestNamespace, address};

use crate::istio::Istio;

/// Migrates the control plane first, then the nodes and the waypoints, and removes Istio's control plane; then migrates
/// all the way back.
#[test]
fn an_istio_mesh_moves_to_ambit_and_back_under_load() {
    let istio = Istio::start_and_install();
    let mesh = &istio.mesh;
    let space = mesh.test_namespace("shop");
    space.deploy_captured_server();
    space.deploy_client("client", Some("n1"));
    let root = root_certificates(&space);

    let load = self::load(&space, "first");
    istio.run_migration_page("istio control plane", space.name());
    assert_eq!(
        self::root_certificates(&space),
        root,
        "both have the same root"
    );
    istio.run_migration_page("istio nodes", space.name());
    assert_all_connections_opened(&load.finish(), "to Ambit's nodes");

    let load = self::load(&space, "second");
    istio.run_migration_page("istio waypoints", space.name());
    let refused = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-deletions}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: by-ambit}]
  action: DENY
  rules: [{to: [{operation: {methods: [GET], paths: [/refused]}}]}]
";
    space.apply(refused);
    space.wait_for_get("client", "http://server/refused", GetOutcome::HttpError);
    istio.run_migration_page("istio end", space.name());
    let problems = mesh.ambit(&["check"]);
    assert!(!problems.contains("Istio's control plane"), "{problems}");
    space.wait_for_get("client", "http://server/refused", GetOutcome::HttpError);
    space.wait_for_get("client", "http://server/", true);
    load.finish().assert_no_failures();
    mesh.kubectl(&["label", "namespace", space.name(), "istio.io/use-waypoint-"]);
    space.wait_for_get("client", "http://server/refused", true);
    mesh.kubectl(&["delete", "gateway/by-ambit", "--namespace", space.name()]);

    let load = self::load(&space, "third");
    istio.install_control_plane();
    istio.run_migration_page("istio back", space.name());
    istio.install();
    istio.run_migration_page("istio back to the end", space.name());
    space.wait_for_get("client", "http://server/", true);
    assert_all_connections_opened(&load.finish(), "back to Istio's");
    assert_only_istio_left(&istio, &space);
}

/// Migrates the nodes first: Ambit's node components run for a while with Istio's control plane, then with Ambit's.
#[test]
fn nodes_that_move_first_follow_istios_control_plane() {
    let istio = Istio::start_and_install();
    let space = istio.mesh.test_namespace("nodes");
    space.deploy_captured_server();
    space.deploy_client("client", Some("n1"));
    let load = self::load(&space, "first");
    istio.run_migration_page("istio nodes first", space.name());
    assert_all_connections_opened(&load.finish(), "to Ambit's nodes");

    // Pods that start now, and policies, come by way of Istio's control plane.
    space.deploy_client("late", Some("n2"));
    space.wait_until_captured("late", true);
    space.wait_for_get("late", "http://server/", true);
    space.apply(
        "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: not-late}
spec:
  action: DENY
  rules: [{from: [{source: {principals: ['*/sa/late']}}]}]
",
    );
    space.wait_for_get("late", "http://server/", false);
    space.wait_for_get("client", "http://server/", true);

    let load = self::load(&space, "second");
    istio.run_migration_page("istio control plane", space.name());
    istio.run_migration_page("istio nodes follow", space.name());
    istio.run_migration_page("istio end", space.name());
    space.wait_for_get("late", "http://server/", false);
    space.wait_for_get("client", "http://server/", true);
    load.finish().assert_no_failures();
}

/// Checks that nothing of Ambit is left but in the network namespaces of pods that have not been restarted, and that a
/// restarted pod has only Istio's rules.
fn assert_only_istio_left(istio: &Istio, space: &TestNamespace<'_>) {
    let objects = istio.kubectl(&[
        "get",
        "daemonset,deployment,service,serviceaccount",
        "--output=name",
    ]);
    assert!(!objects.contains("ambit"), "{objects}");
    assert!(objects.contains("daemonset.apps/ztunnel"), "{objects}");
    space.deploy_client("fresh", Some("n1"));
    space.wait_until_captured("fresh", true);
    space.wait_for_get("fresh", "http://server/", true);
    let rules = redirection_rules(istio, space, "fresh");
    assert!(rules.contains("ISTIO_OUTPUT"), "{rules}");
    assert!(!rules.contains("table inet ambit"), "{rules}");
}

/// Returns the redirection rules in the network namespace of a pod on the first node.
fn redirection_rules(istio: &Istio, space: &TestNamespace<'_>, app: &str) -> String {
    let address = address(&space.pods(app).remove(0));
    let script = format!(
        "for netns in /run/netns/*; do
             nsenter --net=$netns ip -oneline address | grep -q ' {address}/' &&
                 nsenter --net=$netns nft list ruleset
         done; true"
    );
    let mut nodes = istio.mesh.cluster().nodes();
    let node = nodes.find(|node| node.name() == "n1").unwrap();
    let listed = node.command("sh").unwrap().args(["-c", &script]).output();
    String::from_utf8_lossy(&listed.unwrap().stdout).into_owned()
}

/// Starts a load between captured pods of two nodes. Requests may take long, since steps start many programs at once.
fn load<'a>(space: &'a TestNamespace<'a>, name: &str) -> Load<'a> {
    let load = Load::start_slow(space, name, "n1", "server");
    space.wait_until_captured(name, true);
    load
}

/// Checks that every connection could be established. Established connections may break: a node proxy of Istio's
/// terminates its connections at the end of its drain time.
fn assert_all_connections_opened(outcome: &LoadOutcome, step: &str) {
    eprintln!("{step}: longest silence {:?}", outcome.longest_gap);
    outcome.assert_all_connections_opened();
    let mut failures = outcome.failures.iter();
    let opening = failures.find(|failure| failure.line.contains(r#""opening":true"#));
    assert!(opening.is_none(), "{step}: {outcome}");
}

/// Returns the root certificates in a namespace's ConfigMap.
fn root_certificates(space: &TestNamespace<'_>) -> String {
    let namespace = ["--namespace", space.name()];
    let get = [
        "get",
        "configmap",
        "istio-ca-root-cert",
        "--output=jsonpath={.data}",
    ];
    space.mesh().kubectl(&[&get[..], &namespace].concat())
}
