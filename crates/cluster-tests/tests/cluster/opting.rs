//! Pods that say for themselves whether they belong.

use ambit_cluster_tests::{Mesh, Space};
use serde_json::{Value, json};

/// A pod with labels and annotations of its own, serving like [`Space::serve`].
fn pod(name: &str, labels: &Value, annotations: &Value, host_network: bool) -> String {
    let mut labels = labels.clone();
    labels["app"] = json!(name);
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {
            "nodeName": "n1",
            "hostNetwork": host_network,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "tool", "image": "kube.local/ambit/tools:dev", "imagePullPolicy": "Never",
                "args": ["lab-tool", "serve", "--port=18080", "--quiet"],
                "readinessProbe": {"httpGet": {"path": "/", "port": 18080}, "periodSeconds": 1},
            }],
        },
    })
    .to_string()
}

#[track_caller]
fn assert_captured(space: &Space<'_>, name: &str, captured: bool) {
    let pod = space.ready(name, 1).remove(0);
    let said = pod.metadata.annotations.unwrap_or_default();
    assert_eq!(
        said.contains_key("ambient.istio.io/redirection"),
        captured,
        "{name}: {said:?}"
    );
}

#[test]
fn labels_of_pods_weigh_more_than_the_namespaces() {
    let mesh = Mesh::shared();
    let space = mesh.space("opting");
    space.label(Some("ambient"));
    space.apply(&pod("plain", &json!({}), &json!({}), false));
    space.apply(&pod(
        "out",
        &json!({"istio.io/dataplane-mode": "none"}),
        &json!({}),
        false,
    ));
    space.apply(&pod(
        "sidecar",
        &json!({}),
        &json!({"sidecar.istio.io/status": "{}"}),
        false,
    ));
    // The label alone, without an injected sidecar, is no way out.
    space.apply(&pod(
        "uninjected",
        &json!({"sidecar.istio.io/inject": "false"}),
        &json!({}),
        false,
    ));
    space.apply(&pod("host", &json!({}), &json!({}), true));
    space.until_captured("plain", true);
    space.until_captured("uninjected", true);
    for name in ["out", "sidecar", "host"] {
        assert_captured(&space, name, false);
    }

    let elsewhere = mesh.space("opting-in");
    elsewhere.apply(&pod(
        "in",
        &json!({"istio.io/dataplane-mode": "ambient"}),
        &json!({}),
        false,
    ));
    elsewhere.apply(&pod("plain", &json!({}), &json!({}), false));
    elsewhere.until_captured("in", true);
    assert_captured(&elsewhere, "plain", false);
}

#[test]
fn a_running_pod_leaves_and_joins_by_its_own_label() {
    let mesh = Mesh::shared();
    let space = mesh.space("changing");
    space.label(Some("ambient"));
    space.serve("server", Some("n2"));
    space.client("client", Some("n1"));
    space.until_captured("server", true);
    space.until_captured("client", true);
    let name = space.pods("client")[0].metadata.name.clone().unwrap();
    let set = |mode: &str| {
        let label = format!("istio.io/dataplane-mode{mode}");
        mesh.kubectl(&[
            "label",
            "--overwrite",
            "--namespace",
            space.name(),
            "pod",
            &name,
            &label,
        ]);
    };
    set("=none");
    space.until_captured("client", false);
    space.until_get("client", "http://server/", true);
    set("-");
    space.until_captured("client", true);
    space.until_get("client", "http://server/", true);
}

/// Who calls is told by what the server's proxy saw, not by what the client's side hopes.
#[test]
fn a_policy_for_identities_keeps_those_out_that_opted_out() {
    let mesh = Mesh::shared();
    let space = mesh.space("identities");
    space.label(Some("ambient"));
    space.serve("server", Some("n2"));
    space.client("client", Some("n1"));
    space.apply(&pod(
        "out",
        &json!({"istio.io/dataplane-mode": "none"}),
        &json!({}),
        false,
    ));
    space.until_captured("client", true);
    space.ready("out", 1);
    space.until_get("out", "http://server/", true);
    space.apply(
        "apiVersion: security.istio.io/v1\n\
         kind: AuthorizationPolicy\n\
         metadata: {name: only-client}\n\
         spec:\n  \
           selector: {matchLabels: {app: server}}\n  \
           rules:\n  \
           - from: [{source: {principals: [cluster.local/ns/$NAMESPACE/sa/client]}}]\n",
    );
    space.until_get("out", "http://server/", false);
    space.until_get("client", "http://server/", true);
    // kubelet's probes are no clients: the server stays ready.
    space.ready("server", 1);
}
