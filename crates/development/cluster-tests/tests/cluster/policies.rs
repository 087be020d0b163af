//! Tests of authorization policies, from the API server to their effect on pods.

use ambit_cluster_tests::{ExpectedOutcome, Load, Mesh};

const DENY: &str = "apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: deny}
spec:
  selector: {matchLabels: {app: server}}
  action: DENY
  rules: [{to: [{operation: {ports: ['8080']}}]}]
";

#[test]
fn a_deny_with_a_selector_ends_open_connections_too() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("deny");
    space.label(Some("ambient"));
    space.deploy_server("server", Some("n2"));
    space.wait_until_captured("server", true);
    space.deploy_client("client", Some("n1"));
    space.wait_until_captured("client", true);
    space.wait_for_get("client", "http://server/", true);
    let load = Load::start(&space, "load", Some("n1"), "server");
    space.apply(DENY);
    let name = format!("explicitly denied by: {}/deny", space.name());
    space.wait_for_get("client", "http://server/", ExpectedOutcome::Denial(&name));
    let outcome = load.finish();
    for mode in ["keep-alive", "new"] {
        let mut cut = outcome
            .failures
            .iter()
            .filter(|failure| failure.mode == mode);
        assert!(
            cut.any(|failure| ["reset", "eof"].contains(&failure.kind.as_str())),
            "{mode} requests were never refused: {outcome}"
        );
    }
    // The other port is not affected.
    let long: Vec<_> = outcome
        .failures
        .iter()
        .filter(|f| f.mode == "long")
        .collect();
    assert!(long.is_empty(), "{long:?}");
    mesh.kubectl(&[
        "delete",
        "authorizationpolicy",
        "deny",
        "--namespace",
        space.name(),
    ]);
    space.wait_for_get("client", "http://server/", true);
}

#[test]
fn identities_decide_who_may_call() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("identities");
    space.label(Some("ambient"));
    space.deploy_server("server", Some("n2"));
    space.deploy_client("friend", Some("n1"));
    space.deploy_client("stranger", Some("n1"));
    for app in ["server", "friend", "stranger"] {
        space.wait_until_captured(app, true);
    }
    space.apply(
        "apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: friends}
spec:
  selector: {matchLabels: {app: server}}
  action: ALLOW
  rules: [{from: [{source: {principals: ['cluster.local/ns/$NAMESPACE/sa/friend']}}]}]
",
    );
    let none_allowed = ExpectedOutcome::Denial("allow policies exist, but none allowed");
    space.wait_for_get("stranger", "http://server/", none_allowed);
    space.wait_for_get("friend", "http://server/", true);
    // Kubelet's probe is not subject to policies.
    space.wait_until_ready("server", 1);
}
