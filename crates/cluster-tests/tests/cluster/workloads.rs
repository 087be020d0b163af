//! What Kubernetes runs and serves, in the mesh: everything must be as it is outside.

use ambit_cluster_tests::{Mesh, Space, until};
use kube::ResourceExt;
use serde_json::json;

fn pod_spec(args: &[&str]) -> serde_json::Value {
    let mut words = vec!["lab-tool"];
    words.extend(args);
    json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "tool", "image": "kube.local/ambit/tools:dev", "imagePullPolicy": "Never",
            "args": words,
        }],
    })
}

fn service(name: &str, spec: &serde_json::Value) -> String {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

/// A space in the mesh with a server and a client that are captured.
fn pair<'a>(mesh: &'a Mesh, name: &str) -> Space<'a> {
    let space = mesh.space(name);
    space.label(Some("ambient"));
    space.serve("server", Some("n2"));
    space.client("client", Some("n1"));
    space.until_captured("server", true);
    space.until_captured("client", true);
    space.until_get("client", "http://server/", true);
    space
}

#[test]
fn a_stateful_set_keeps_names_while_addresses_change() {
    let mesh = Mesh::shared();
    let space = pair(&mesh, "stateful");
    let labels = json!({"app": "member"});
    space.apply(&service(
        "members",
        &json!({"clusterIP": "None", "selector": labels, "ports": [{"name": "http", "port": 8080}]}),
    ));
    let mut spec = pod_spec(&["serve", "--port=8080", "--quiet"]);
    spec["nodeName"] = json!("n2");
    space.apply(
        &json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "member"},
            "spec": {
                "serviceName": "members", "replicas": 2, "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        })
        .to_string(),
    );
    space.ready("member", 2);
    let url = "http://member-0.members:8080/";
    space.until_get("client", url, true);
    let address = |space: &Space<'_>| {
        let pods = space.pods("member");
        let pod = pods.iter().find(|pod| pod.name_any() == "member-0");
        pod.and_then(|pod| pod.status.clone()?.pod_ip)
    };
    let before = address(&space).expect("it runs");
    space.delete_pod("member-0");
    until("member-0 is back under another address", || {
        address(&space).is_some_and(|now| now != before)
    });
    space.ready("member", 2);
    space.until_captured("member", true);
    // The client's resolver may remember the old address for its time to live.
    until("the name leads to the new pod, through the mesh", || {
        space
            .get("client", url)
            .is_ok_and(|answer| answer.contains("member-0"))
    });
}

#[test]
fn jobs_finish() {
    let mesh = Mesh::shared();
    let space = pair(&mesh, "jobs");
    let mut spec = pod_spec(&["get", "http://server/", "--timeout=20000"]);
    spec["restartPolicy"] = json!("Never");
    space.apply(
        &json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "once"},
            "spec": {
                "completions": 4, "parallelism": 2, "backoffLimit": 0,
                "template": {"metadata": {"labels": {"app": "once"}}, "spec": spec},
            },
        })
        .to_string(),
    );
    mesh.kubectl(&[
        "wait",
        "--namespace",
        space.name(),
        "--for=condition=Complete",
        "--timeout=120s",
        "job/once",
    ]);
}

#[test]
fn services_of_all_kinds_are_reached() {
    let mesh = Mesh::shared();
    let space = pair(&mesh, "services");
    let selector = json!({"app": "server"});
    space.apply(&service(
        "headless",
        &json!({"clusterIP": "None", "selector": selector, "ports": [{"name": "http", "port": 8080}]}),
    ));
    space.apply(&service(
        "sticky",
        &json!({"selector": selector, "sessionAffinity": "ClientIP",
                "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}),
    ));
    space.apply(&service(
        "elsewhere",
        &json!({"type": "ExternalName",
                "externalName": format!("server.{}.svc.cluster.local", space.name())}),
    ));
    space.apply(&service(
        "outside",
        &json!({"type": "NodePort", "selector": selector,
                "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}),
    ));
    for url in [
        "http://headless:8080/",
        "http://sticky/",
        "http://elsewhere/",
        "http://outside/",
    ] {
        space.until_get("client", url, true);
    }

    let port = mesh.kubectl(&[
        "get",
        "--namespace",
        space.name(),
        "service/outside",
        "--output=jsonpath={.spec.ports[0].nodePort}",
    ]);
    for node in ["n1", "n2"] {
        let url = format!("http://{}:{port}/", address_of(&mesh, node));
        space.until_get("client", &url, true);
    }

    let mut spec = pod_spec(&["serve", "--port=8080", "--quiet"]);
    spec["nodeName"] = json!("n2");
    spec["containers"][0]["ports"] = json!([{"containerPort": 8080, "hostPort": 18088}]);
    space.apply(
        &json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "host-port", "labels": {"app": "host-port"}}, "spec": spec,
        })
        .to_string(),
    );
    space.ready("host-port", 1);
    space.until_captured("host-port", true);
    let url = format!("http://{}:18088/", address_of(&mesh, "n2"));
    space.until_get("client", &url, true);
}

fn address_of(mesh: &Mesh, node: &str) -> String {
    let path = "--output=jsonpath={.status.addresses[?(@.type=='InternalIP')].address}";
    mesh.kubectl(&["get", "node", node, path])
}
