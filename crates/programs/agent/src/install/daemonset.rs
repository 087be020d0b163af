//! Reads Ambit's `DaemonSet` and the node's object from the API server, when the agent starts and terminates.

use std::{path::Path, time::Duration};

use ambit_kube_kit::create_client;
use ambit_rt::ErrorChain;
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Node};
use kube::Api;

use super::uninstall::DaemonSetLookup;

/// Number of attempts and timeout of each, after which the API server counts as unreachable; well within a pod's grace
/// period.
const ATTEMPTS: (u32, Duration) = (3, Duration::from_secs(3));

/// Reads the agent's `DaemonSet` and the node's object; the latter is also returned if the `DaemonSet` is missing or
/// access to it is denied.
pub async fn look_up(
    kubeconfig: Option<&Path>,
    namespace: &str,
    name: &str,
    node: &str,
) -> (DaemonSetLookup, Option<Node>) {
    let mut last = String::new();
    for _ in 0..ATTEMPTS.0 {
        let response =
            tokio::time::timeout(ATTEMPTS.1, fetch(kubeconfig, namespace, name, node)).await;
        match response {
            Ok((DaemonSetLookup::Unreachable(why), _)) => {
                last = why;
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Ok(known) => return known,
            Err(_) => last = "it did not answer in time".to_owned(),
        }
    }
    (DaemonSetLookup::Unreachable(last), None)
}

async fn fetch(
    kubeconfig: Option<&Path>,
    namespace: &str,
    name: &str,
    node: &str,
) -> (DaemonSetLookup, Option<Node>) {
    // A client of its own: the token of an agent that ran for long has been renewed on disk since.
    let client = match create_client(kubeconfig, "ambit-agent").await {
        Ok(client) => client,
        Err(error) => {
            return (
                DaemonSetLookup::Unreachable(ErrorChain(&error).to_string()),
                None,
            );
        }
    };
    let sets: Api<DaemonSet> = Api::namespaced(client.clone(), namespace);
    let lookup = match sets.get_opt(name).await {
        Ok(Some(set)) => DaemonSetLookup::Found(Box::new(set)),
        Ok(None) => DaemonSetLookup::Absent,
        Err(kube::Error::Api(status)) if matches!(status.code, 401 | 403) => {
            DaemonSetLookup::Refused(status.code)
        }
        Err(error) => {
            return (
                DaemonSetLookup::Unreachable(ErrorChain(&error).to_string()),
                None,
            );
        }
    };
    let nodes: Api<Node> = Api::all(client);
    (lookup, nodes.get_opt(node).await.ok().flatten())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ambit_testkit::ApiServer;
    use serde_json::json;

    use super::{super::uninstall::UninstallDecision, *};
    use crate::install::uninstall::decide;

    const DAEMONSETS_PATH: &str = "/apis/apps/v1/daemonsets";

    #[tokio::test]
    async fn lookup_maps_responses_of_the_api_server() {
        let server = ApiServer::start();
        server.serve(DAEMONSETS_PATH, "DaemonSet");
        server.serve("/api/v1/nodes", "Node");
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        fs::write(&kubeconfig, server.kubeconfig()).unwrap();
        let keeps = async || {
            let (lookup, node) = look_up(Some(&kubeconfig), "mesh", "ambit-agent", "n1").await;
            matches!(decide(&lookup, node.as_ref()), UninstallDecision::Keep(_))
        };
        assert!(!keeps().await, "it is gone");
        let put = |selector: serde_json::Value| {
            let set = json!({
                "apiVersion": "apps/v1", "kind": "DaemonSet",
                "metadata": {"name": "ambit-agent", "namespace": "mesh"},
                "spec": {"selector": {}, "template": {"spec":
                    {"containers": [], "nodeSelector": selector}}},
            });
            server.put(DAEMONSETS_PATH, set);
        };
        put(json!({}));
        assert!(keeps().await, "it is replaced; the node cannot be read");
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata":
            {"name": "n1", "labels": {"os": "linux"}}});
        server.put("/api/v1/nodes", node);
        put(json!({"os": "linux"}));
        assert!(keeps().await);
        put(json!({"os": "other"}));
        assert!(!keeps().await, "it no longer wants the node");
        put(json!({}));
        for status in [401, 403] {
            server.fail_next(&[status]);
            assert!(!keeps().await, "{status}");
        }
        server.fail_next(&[500]);
        assert!(keeps().await, "asked again");
        let release = ambit_install::render::Release {
            namespace: "mesh".to_owned(),
            ..Default::default()
        };
        let values = ambit_install::values::ValueOverrides::default().with_defaults();
        let chart = ambit_install::render::render_objects(&release, &values.unwrap()).unwrap();
        let difference = ambit_testkit::roles::compare(&server.requests(), &chart, "ambit-agent");
        assert_eq!(difference.missing, Default::default());
        server.set_unavailable(true);
        assert!(keeps().await, "nothing is known");
    }
}
