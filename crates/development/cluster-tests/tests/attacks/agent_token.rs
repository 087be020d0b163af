//! Tests that the token of a node's agent allows writing to that node's pods, and to no other node's pods.

use ambit_cluster_tests::{Component, Mesh};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

/// Returns a client of the API server that authenticates with the token alone, as a thief of the token would.
fn client_with_token(mesh: &Mesh, token: &str) -> Client {
    let server = mesh.kubectl(&[
        "config",
        "view",
        "-o=jsonpath={.clusters[0].cluster.server}",
    ]);
    let mut config = kube::Config::new(server.trim().parse().unwrap());
    config.accept_invalid_certs = true;
    config.auth_info.token = Some(token.to_owned().into());
    mesh.wait_for(async { Client::try_from(config) }).unwrap()
}

/// Writes to a pod as an agent does: a patch of its status, without reading the pod first.
fn patch_pod_status(mesh: &Mesh, client: &Client, namespace: &str, pod: &str) -> kube::Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let forged = json!({"metadata": {"annotations": {"ambient.istio.io/redirection": "forged"}}});
    mesh.wait_for(pods.patch_status(pod, &PatchParams::default(), &Patch::Merge(forged)))
}

#[test]
fn an_agents_token_is_good_for_its_own_nodes_pods() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("agent-token");
    let [here, there] = [("here", "n1"), ("there", "n2")]
        .map(|(name, node)| space.deploy_client(name, Some(node)).name_any());
    let agents = mesh.pods_of(Component::Agent);
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
    let thief = client_with_token(&mesh, token.trim());
    let response = patch_pod_status(&mesh, &thief, space.name(), &there)
        .expect_err("it wrote about a pod of another node")
        .to_string();
    assert!(
        response.contains("the pods of its own node only"),
        "{response}"
    );
    patch_pod_status(&mesh, &thief, space.name(), &here).unwrap();
    // The agents themselves still can.
    space.label(Some("ambient"));
    space.wait_until_captured("here", true);
    space.wait_until_captured("there", true);
}
