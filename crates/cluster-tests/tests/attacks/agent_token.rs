//! Whoever has the token of a node's agent can write about that node's pods, and about no other's.

use std::process::Output;

use ambit_cluster_tests::{Mesh, Part};
use kube::ResourceExt;

const PATCH: &str = r#"{"metadata": {"annotations": {"ambient.istio.io/redirection": "forged"}}}"#;

/// Writes about a pod with a token alone.
fn write(mesh: &Mesh, token: &str, namespace: &str, pod: &str) -> Output {
    let server = mesh.kubectl(&[
        "config",
        "view",
        "-o=jsonpath={.clusters[0].cluster.server}",
    ]);
    let mut command = mesh.cluster().kubectl();
    command
        .args(["--kubeconfig=/dev/null", "--insecure-skip-tls-verify"])
        .arg(format!("--server={}", server.trim()))
        .arg(format!("--token={token}"))
        .args(["--namespace", namespace, "patch", "pod", pod])
        .args(["--subresource=status", "--type=merge", "--patch", PATCH]);
    command.output().unwrap()
}

#[test]
fn an_agents_token_is_good_for_its_own_nodes_pods() {
    let mesh = Mesh::shared();
    let space = mesh.space("agent-token");
    let [here, there] = [("here", "n1"), ("there", "n2")]
        .map(|(name, node)| space.client(name, Some(node)).name_any());
    let agents = mesh.pods_of(Part::Agent);
    let agent = agents
        .iter()
        .find(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some("n1"));
    let agent = agent.unwrap().name_any();
    let token = mesh.kubectl(&[
        "--namespace=istio-system",
        "create",
        "token",
        "ambit-agent",
        "--bound-object-kind=Pod",
        &format!("--bound-object-name={agent}"),
    ]);
    let token = token.trim();
    let other = write(&mesh, token, space.name(), &there);
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(!other.status.success(), "it wrote about {there}");
    assert!(said.contains("the pods of its own node only"), "{said}");
    let own = write(&mesh, token, space.name(), &here);
    assert!(own.status.success(), "{own:?}");
    // The agents themselves still do.
    space.label(Some("ambient"));
    space.until_captured("here", true);
    space.until_captured("there", true);
}
