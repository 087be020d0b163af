//! Tests of layer 4 policies that name principals, while a waypoint is introduced in front of the policies' pods.

use ambit_cluster_tests::{Load, Mesh, TestNamespace, Waypoint, wait_until};

use super::reported_source_address;

/// Returns a policy for the server's pod, with this action for the service accounts of a namespace.
fn policy(action: &str, namespace: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\n\
         kind: AuthorizationPolicy\n\
         metadata: {{name: callers}}\n\
         spec:\n\
         \x20 action: {action}\n\
         \x20 selector: {{matchLabels: {{app: server}}}}\n\
         \x20 rules: [{{from: [{{source: {{namespaces: [{namespace}]}}}}]}}]\n"
    )
}

/// Starts the pod `prober`, which sends requests until it is deleted and logs a line for each.
fn start_prober(intruder: &TestNamespace<'_>, url: &str) {
    let script = format!(
        "while true; do
             if ambit-lab-tool get {url} --timeout=2000 >/dev/null 2>&1; then echo allowed; else echo refused; fi
         done"
    );
    intruder.run("prober", Some("n1"), &script);
    intruder.wait_until_captured("prober", true);
}

#[test]
fn a_migrated_allow_policy_allows_and_refuses_the_same_callers() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("migrated-allow");
    let intruder = mesh.test_namespace("intruder");
    introduce_waypoint(&space, &intruder, &policy("ALLOW", space.name()));
}

#[test]
fn a_migrated_deny_policy_allows_and_refuses_the_same_callers() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("migrated-deny");
    let intruder = mesh.test_namespace("intruder");
    introduce_waypoint(&space, &intruder, &policy("DENY", intruder.name()));
}

/// Introduces a waypoint while pods of both namespaces send requests to a server with this policy.
fn introduce_waypoint(space: &TestNamespace<'_>, intruder: &TestNamespace<'_>, policy: &str) {
    let mesh = space.mesh();
    space.deploy_captured_server();
    space.apply(policy);
    let url = format!("http://server.{}/", space.name());
    intruder.label(Some("ambient"));
    intruder.deploy_client("client", Some("n1"));
    intruder.wait_until_captured("client", true);
    intruder.wait_for_get("client", &url, false);
    start_prober(intruder, &url);
    let load = Load::start_slow(space, "load", "n1", "server");
    space.wait_until_captured("load", true);

    let kubeconfig = format!("--kubeconfig={}", mesh.cluster().kubeconfig().display());
    let apply = [
        "waypoint",
        "apply",
        "--namespace",
        space.name(),
        &kubeconfig,
    ];
    let output = mesh.ambit(&[&apply[..], &["--wait", "--migrate-policies"]].concat());
    assert!(output.contains("/callers migrated"), "{output}");
    let waypoint = Waypoint::find_ready(space);
    wait_until("requests pass the waypoint", || {
        let response = space.get("load", "http://server/");
        let caller = response
            .ok()
            .and_then(|response| reported_source_address(&response));
        caller.is_some_and(|caller| waypoint.addresses().contains(&caller))
    });
    let refused = || intruder.log("prober").matches("refused").count();
    let before = refused();
    wait_until("the waypoint refuses the intruder, too", || {
        refused() > before + 2
    });
    load.finish().assert_no_failures();
    assert_eq!(intruder.log("prober").matches("allowed").count(), 0);
}
