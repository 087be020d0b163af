//! Checks for other meshes in the cluster, and for Istio's own ambient components.

use ambit_install::object::{is_managed_by_ambit, label, name, namespace_of};

use super::{
    finding::{Finding, FindingLevel},
    snapshot::Snapshot,
};

pub(super) fn findings(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for deployment in snapshot
        .deployments
        .iter()
        .filter(|object| !is_managed_by_ambit(*object))
    {
        let about = format!(
            "Deployment {}/{}",
            namespace_of(deployment),
            name(deployment)
        );
        if label(deployment, "app") == Some("istiod") {
            findings.push(if namespace_of(deployment) == snapshot.mesh_namespace {
                Finding::new(
                    FindingLevel::Error,
                    &about,
                    "Istio's control plane has the namespace, the Service istiod and the secrets of this mesh",
                    "uninstall it first, or choose another namespace with --mesh-namespace",
                )
            } else {
                Finding::new(
                    FindingLevel::Warning,
                    &about,
                    "Istio's control plane runs here: both would write root certificates into every namespace",
                    "give each its namespaces (discoverySelectors), or uninstall one",
                )
            });
        }
        if name(deployment) == "linkerd-destination" {
            findings.push(Finding::new(
                FindingLevel::Warning,
                about,
                "Linkerd runs here",
                "do not put namespaces with its proxies into the mesh",
            ));
        }
    }
    for set in snapshot
        .daemon_sets
        .iter()
        .filter(|object| !is_managed_by_ambit(*object))
    {
        let about = format!("DaemonSet {}/{}", namespace_of(set), name(set));
        let same = |what: &str, advice: &str| {
            Finding::new(FindingLevel::Error, about.clone(), what, advice)
        };
        match name(set) {
            "istio-cni-node" => findings.push(same(
                "Istio's node agent uses the same sockets and captures the same pods",
                "uninstall it first; pods keep their traffic and are taken over",
            )),
            "ztunnel" => findings.push(same(
                "Istio's node proxy connects to the same socket",
                "uninstall it first; or keep it and leave ours out",
            )),
            "linkerd-cni" => findings.push(Finding::new(
                FindingLevel::Warning,
                about,
                "Linkerd's CNI plugin is chained on every node",
                "do not put namespaces with its proxies into the mesh",
            )),
            _ => {}
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn object<T: DeserializeOwned>(namespace: &str, name: &str, labels: Value) -> T {
        let metadata = json!({"namespace": namespace, "name": name, "labels": labels});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn other_meshes_are_found_and_our_own_is_not_one() {
        let ours = json!({"app": "istiod", "app.kubernetes.io/part-of": "ambit"});
        let snapshot = Snapshot {
            mesh_namespace: "istio-system".into(),
            deployments: vec![
                object("istio-system", "ambit-control", ours),
                object("istio-system", "istiod", json!({"app": "istiod"})),
                object("other", "istiod", json!({"app": "istiod"})),
                object("linkerd", "linkerd-destination", json!({})),
                object("shop", "orders", json!({"app": "orders"})),
            ],
            daemon_sets: vec![
                object(
                    "istio-system",
                    "ztunnel",
                    json!({"app.kubernetes.io/part-of": "ambit"}),
                ),
                object("kube-system", "ztunnel", json!({})),
                object("istio-system", "istio-cni-node", json!({})),
            ],
            ..Snapshot::default()
        };
        let found: Vec<_> = findings(&snapshot)
            .into_iter()
            .map(|finding| (finding.level, finding.about))
            .collect();
        assert_eq!(
            found,
            [
                (
                    FindingLevel::Error,
                    "Deployment istio-system/istiod".to_owned()
                ),
                (FindingLevel::Warning, "Deployment other/istiod".to_owned()),
                (
                    FindingLevel::Warning,
                    "Deployment linkerd/linkerd-destination".to_owned()
                ),
                (
                    FindingLevel::Error,
                    "DaemonSet kube-system/ztunnel".to_owned()
                ),
                (
                    FindingLevel::Error,
                    "DaemonSet istio-system/istio-cni-node".to_owned()
                ),
            ]
        );
    }
}
