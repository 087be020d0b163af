//! Tests of NetworkPolicies with captured pods: the policies apply to the packets of the tunnels between the pods.

use serde_json::json;

use crate::{GetOutcome, Mesh, TestNamespace, is_ready, restarts, wait_until};

/// NetworkPolicy that allows some clients to call some ports of the server.
const INGRESS: &str = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from: [{podSelector: {matchExpressions: [{key: app, operator: In, values: $PEERS}]}}]
    ports: $PORTS
";

/// NetworkPolicy that allows the pod `hermit` to call some servers.
const EGRESS: &str = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: hermit}
spec:
  podSelector: {matchLabels: {app: hermit}}
  policyTypes: [Egress]
  egress: $RULES
";

const SERVER: &str = "http://server/";

/// Implementation that enforces NetworkPolicies.
#[derive(Clone, Copy, Debug)]
pub enum PolicyEngine {
    /// The primary CNI's own implementation enforces NetworkPolicies.
    PrimaryCni,
    /// A separate engine, which the test starts, enforces NetworkPolicies.
    TestEngine,
}

/// Checks that NetworkPolicies allow and deny calls between captured pods, on one node and across nodes.
#[track_caller]
pub fn assert_network_policies_enforced(mesh: &Mesh, engine: PolicyEngine) {
    let space = mesh.test_namespace("network-policies");
    space.label(Some("ambient"));
    let set = |peers: &str, ports: &str, hermit: &str| {
        space.apply(&INGRESS.replace("$PEERS", peers).replace("$PORTS", ports));
        space.apply(&EGRESS.replace("$RULES", hermit));
    };
    space.deploy_server("server", Some("n2"));
    let captured = ["friend", "stranger", "neighbour", "hermit"];
    for app in captured {
        let node = if app == "neighbour" { "n2" } else { "n1" };
        space.deploy(app, 1, Some(node), &["sleep"]);
    }
    for app in captured {
        space.wait_until_ready(app, 1);
        space.wait_until_captured(app, true);
    }
    space.wait_until_captured("server", true);
    // A client that is not in the mesh.
    let outside = "outside";
    let apart = json!({"istio.io/dataplane-mode": "none"});
    space.create_ownerless_pod(outside, Some("n1"), apart, json!({}));
    space.wait_until_ready(outside, 1);
    space.wait_for_get(outside, SERVER, true);

    // Only openings are checked, and the mesh keeps its connections: one from before a policy continues
    // under it. So there is no call through the mesh before a first policy is in force.
    set("[friend]", "[{port: 8080}]", "[]");
    let _enforced = match engine {
        PolicyEngine::PrimaryCni => None,
        PolicyEngine::TestEngine => Some(mesh.cluster().enforce_network_policies().unwrap()),
    };
    wait_until("the first policy is in force", || {
        is_blocked(space.try_get(outside, SERVER).0)
    });
    // A policy that names only the app's port blocks the mesh's calls at 15008.
    set("[friend, outside]", "[{port: 8080}]", "[]");
    space.wait_for_get(outside, SERVER, true);
    assert_all_fail(&space, &["friend", "hermit"]);

    // A call that succeeds now has been accepted by the engines of both nodes: they know this policy.
    let ports = "[{port: 8080}, {port: 15008}]";
    set("[friend]", ports, "[]");
    space.wait_for_get("friend", SERVER, true);
    assert_all_fail(&space, &["stranger", "neighbour", "hermit", outside]);

    let everyone = "[friend, stranger, neighbour, hermit, outside]";
    set(everyone, ports, "[]");
    for app in ["stranger", "neighbour", outside] {
        space.wait_for_get(app, SERVER, true);
    }
    assert_all_fail(&space, &["hermit"]);
    let to_server = "[{to: [{podSelector: {matchLabels: {app: server}}}], ports: [{port: 15008}]}]";
    set(everyone, ports, to_server);
    space.wait_for_get("hermit", SERVER, true);
    // Kubelet's probes, one a second, have passed meanwhile.
    let server = space.pods("server").remove(0);
    assert!(is_ready(&server) && restarts(&server) == 0);
}

/// Checks that requests from all apps fail. Sends the requests concurrently, since each blocked request waits for the
/// timeout of the client or the proxy.
fn assert_all_fail(space: &TestNamespace<'_>, apps: &[&str]) {
    std::thread::scope(|scope| {
        for app in apps {
            scope.spawn(move || {
                let (ending, text) = space.try_get(app, SERVER);
                assert!(is_blocked(ending), "{app} -> {SERVER}: {ending:?}: {text}");
            });
        }
    });
}

/// Returns whether packets of a call were dropped or rejected.
fn is_blocked(ending: GetOutcome) -> bool {
    ending.is_terminated() || matches!(ending, GetOutcome::TimedOut | GetOutcome::Refused)
}
