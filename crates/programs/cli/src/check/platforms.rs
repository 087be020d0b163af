//! Checks for known problems of Kubernetes platforms and network plugins.

use ambit_install::object::{name, namespace_of};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Container, ResourceQuota},
};

use super::{
    finding::{Finding, FindingLevel},
    snapshot::Snapshot,
};

/// Priority class of the agent's and the node proxies' pods.
const CRITICAL_PRIORITY_CLASS: &str = "system-node-critical";

pub(super) fn findings(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    check_platform(snapshot, &mut findings);
    check_quota(snapshot, &mut findings);
    check_cilium(snapshot, &mut findings);
    for set in &snapshot.daemon_sets {
        check_network_plugin(set, &mut findings);
    }
    findings
}

/// Reports an installation whose `platform` value does not match the nodes: the runtime may use other CNI
/// directories.
fn check_platform(snapshot: &Snapshot, findings: &mut Vec<Finding>) {
    let Some(inventory) = &snapshot.inventory else {
        return;
    };
    let chosen = inventory.platform();
    if chosen != snapshot.platform {
        let described = |name: &str| {
            if name.is_empty() {
                "none in particular".to_owned()
            } else {
                name.to_owned()
            }
        };
        findings.push(Finding::new(
            FindingLevel::Warning,
            "cluster",
            format!(
                "installed for the platform {}; the nodes look like {}",
                described(chosen),
                described(snapshot.platform)
            ),
            "`ambit upgrade --platform auto` detects it from the nodes",
        ));
    }
}

fn check_quota(snapshot: &Snapshot, findings: &mut Vec<Finding>) {
    if snapshot.platform != "gke"
        || snapshot.mesh_namespace == "kube-system"
        || snapshot.inventory.is_none()
    {
        return;
    }
    let allows = |quota: &ResourceQuota| {
        let selector = quota
            .spec
            .as_ref()
            .and_then(|spec| spec.scope_selector.as_ref());
        let scopes = selector.and_then(|selector| selector.match_expressions.as_ref());
        let mut values = scopes
            .into_iter()
            .flatten()
            .filter_map(|scope| scope.values.as_ref());
        namespace_of(quota) == snapshot.mesh_namespace
            && values.any(|values| values.iter().any(|value| value == CRITICAL_PRIORITY_CLASS))
    };
    if !snapshot.quotas.iter().any(allows) {
        findings.push(Finding::new(
            FindingLevel::Error,
            format!("namespace {}", snapshot.mesh_namespace),
            "GKE lets pods of critical priority run only under a ResourceQuota, and there is none",
            "`ambit upgrade --platform gke` makes it",
        ));
    }
}

fn check_cilium(snapshot: &Snapshot, findings: &mut Vec<Finding>) {
    let Some(config) = &snapshot.cilium_config else {
        return;
    };
    let is = |key: &str, value: &str| {
        let data = config.data.as_ref();
        data.and_then(|data| data.get(key))
            .is_some_and(|set| set == value)
    };
    let about = "ConfigMap kube-system/cilium-config";
    if is("cni-exclusive", "true") {
        findings.push(Finding::new(
            FindingLevel::Error,
            about,
            "Cilium takes away every other CNI configuration: new pods would not be captured",
            "set its value cni.exclusive=false",
        ));
    }
    let replaces = is("kube-proxy-replacement", "true") || is("kube-proxy-replacement", "strict");
    if replaces && !is("bpf-lb-sock-hostns-only", "true") {
        findings.push(Finding::new(
            FindingLevel::Error,
            about,
            "Cilium translates Services' addresses inside pods: the mesh sees no Services",
            "set its value socketLB.hostNamespaceOnly=true",
        ));
    }
    if is("enable-bpf-masquerade", "true") {
        findings.push(Finding::new(
            FindingLevel::Warning,
            about,
            "Cilium's masquerading may lose kubelet's probes on their way to captured pods",
            "set its value bpf.masquerade=false if probes fail",
        ));
    }
}

fn check_network_plugin(set: &DaemonSet, findings: &mut Vec<Finding>) {
    let about = format!("DaemonSet {}/{}", namespace_of(set), name(set));
    let pod = set
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref());
    let containers: &[Container] = pod.map_or(&[], |pod| &pod.containers);
    let env = |key: &str| {
        let mut all = containers
            .iter()
            .filter_map(|one| one.env.as_ref())
            .flatten();
        let found = all.find(|variable| variable.name == key);
        found
            .and_then(|variable| variable.value.as_deref())
            .unwrap_or_default()
    };
    let image = containers
        .first()
        .and_then(|container| container.image.as_deref());
    let image = image.unwrap_or_default();
    match name(set) {
        "calico-node" if env("FELIX_BPFENABLED").eq_ignore_ascii_case("true") && is_older_than(image, (3, 29)) => {
            findings.push(Finding::new(
                FindingLevel::Warning,
                about,
                "Calico's eBPF before 3.29 drops kubelet's probes to captured pods",
                "upgrade Calico to 3.29 or newer",
            ));
        }
        "aws-node" if env("ENABLE_POD_ENI") == "true" && env("POD_SECURITY_GROUP_ENFORCING_MODE") != "standard" => {
            findings.push(Finding::new(
                FindingLevel::Warning,
                about,
                "pods with security groups of their own do not get kubelet's probes while captured",
                "set POD_SECURITY_GROUP_ENFORCING_MODE=standard",
            ));
        }
        "kube-multus-ds" | "multus" => findings.push(Finding::new(
            FindingLevel::Info,
            about,
            "Multus chooses the networks of pods",
            "if new pods are not captured, set cni.cniConfDir to the directory of its primary network",
        )),
        _ => {}
    }
}

/// Whether the version in an image's tag is older than `version`; false for tags that are no versions.
fn is_older_than(image: &str, version: (u64, u64)) -> bool {
    let tag = image
        .rsplit_once(':')
        .map_or("", |(_, tag)| tag)
        .trim_start_matches('v');
    super::rules::parse_version(tag).is_some_and(|found| found < version)
}

#[cfg(test)]
mod tests {
    use ambit_install::inventory::Inventory;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn typed<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn levels(snapshot: &Snapshot) -> Vec<FindingLevel> {
        findings(snapshot)
            .iter()
            .map(|finding| finding.level)
            .collect()
    }

    #[test]
    fn ciliums_settings() {
        let with = |data: Value| Snapshot {
            cilium_config: Some(typed(json!({"data": data}))),
            ..Snapshot::default()
        };
        for (data, expected) in [
            (json!({"cni-exclusive": "true"}), vec![FindingLevel::Error]),
            (json!({"cni-exclusive": "false"}), vec![]),
            (
                json!({"kube-proxy-replacement": "true"}),
                vec![FindingLevel::Error],
            ),
            (
                json!({"kube-proxy-replacement": "true", "bpf-lb-sock-hostns-only": "true"}),
                vec![],
            ),
            (
                json!({"enable-bpf-masquerade": "true"}),
                vec![FindingLevel::Warning],
            ),
        ] {
            assert_eq!(levels(&with(data.clone())), expected, "{data}");
        }
    }

    #[test]
    fn network_plugins_of_known_trouble() {
        let set = |name: &str, image: &str, env: Value| -> DaemonSet {
            typed(json!({
                "metadata": {"name": name, "namespace": "kube-system"},
                "spec": {"template": {"spec": {"containers": [{"image": image, "env": env}]}}},
            }))
        };
        let with = |set| Snapshot {
            daemon_sets: vec![set],
            ..Snapshot::default()
        };
        let bpf = json!([{"name": "FELIX_BPFENABLED", "value": "true"}]);
        assert_eq!(
            levels(&with(set(
                "calico-node",
                "calico/node:v3.28.1",
                bpf.clone()
            ))),
            [FindingLevel::Warning]
        );
        assert_eq!(
            levels(&with(set(
                "calico-node",
                "calico/node:v3.30.0",
                bpf.clone()
            ))),
            []
        );
        assert_eq!(levels(&with(set("calico-node", "calico/node", bpf))), []);
        let eni = json!([{"name": "ENABLE_POD_ENI", "value": "true"}]);
        assert_eq!(
            levels(&with(set("aws-node", "x:1", eni))),
            [FindingLevel::Warning]
        );
        assert_eq!(
            levels(&with(set("kube-multus-ds", "x:1", json!([])))),
            [FindingLevel::Info]
        );
        assert_eq!(levels(&with(set("other", "x:1", json!([])))), []);
    }

    #[test]
    fn gke_needs_a_quota_and_the_right_platform() {
        let inventory = Inventory {
            values: json!({"global": {"platform": "gke"}}),
            ..Inventory::default()
        };
        let mut snapshot = Snapshot {
            platform: "gke",
            mesh_namespace: "istio-system".into(),
            inventory: Some(inventory),
            ..Snapshot::default()
        };
        assert_eq!(levels(&snapshot), [FindingLevel::Error]);
        snapshot.quotas.push(typed(json!({
            "metadata": {"namespace": "istio-system"},
            "spec": {"scopeSelector": {"matchExpressions": [{"values": ["system-node-critical"]}]}},
        })));
        assert_eq!(levels(&snapshot), []);
        snapshot.platform = "";
        assert_eq!(levels(&snapshot), [FindingLevel::Warning]);
    }
}
