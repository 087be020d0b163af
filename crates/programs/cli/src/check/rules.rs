//! Checks of versions, CRDs, mesh namespaces and the installation itself.

use ambit_install::{
    gateway_api,
    object::{annotation, is_managed_by_ambit, label, name, namespace_of},
    remove, render,
    rollout::{Rollout, daemon_set_rollout, deployment_rollout},
};
use k8s_openapi::{
    api::core::v1::Node,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::Resource;

use super::{
    finding::{Finding, FindingLevel},
    snapshot::Snapshot,
};

/// Oldest minor version of Kubernetes 1.x that the chart supports.
const MIN_KUBERNETES_MINOR: u64 = 28;
/// Oldest kernel whose nftables has one table for both address families; on older ones, iptables is used.
const MIN_NFTABLES_KERNEL: (u64, u64) = (5, 2);
/// Oldest kernel that supports the network namespaces, packet marks and transparent sockets that Ambit needs.
const MIN_KERNEL: (u64, u64) = (4, 18);

pub(super) fn findings(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    check_kubernetes_version(snapshot, &mut findings);
    check_nodes(snapshot, &mut findings);
    check_crds(snapshot, &mut findings);
    check_gateways(snapshot, &mut findings);
    check_pod_security(snapshot, &mut findings);
    check_namespaces(snapshot, &mut findings);
    check_installation(snapshot, &mut findings);
    findings
}

fn check_kubernetes_version(snapshot: &Snapshot, findings: &mut Vec<Finding>) {
    let digits: String = snapshot
        .minor
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    match digits.parse::<u64>() {
        Ok(minor) if minor >= MIN_KUBERNETES_MINOR => {}
        _ => findings.push(Finding::new(
            FindingLevel::Error,
            "cluster",
            format!("its version is 1.{}", snapshot.minor),
            format!("Ambit needs Kubernetes 1.{MIN_KUBERNETES_MINOR} or newer"),
        )),
    }
}

fn check_nodes(snapshot: &Snapshot, findings: &mut Vec<Finding>) {
    for node in &snapshot.nodes {
        let about = format!("node {}", name(node));
        let info = node
            .status
            .as_ref()
            .and_then(|status| status.node_info.as_ref());
        if info.is_some_and(|info| info.operating_system == "windows") {
            findings.push(Finding::new(
                FindingLevel::Info,
                about,
                "it runs Windows: its pods stay outside the mesh",
                "",
            ));
            continue;
        }
        let kernel = info.map_or("", |info| &info.kernel_version);
        match parse_version(kernel) {
            Some(found) if found < MIN_KERNEL => findings.push(Finding::new(
                FindingLevel::Error,
                &about,
                format!("its kernel is {kernel}"),
                format!("use {}.{} or newer", MIN_KERNEL.0, MIN_KERNEL.1),
            )),
            Some(found) if found < MIN_NFTABLES_KERNEL => findings.push(Finding::new(
                FindingLevel::Warning,
                &about,
                format!(
                    "its kernel is {kernel}: pods are captured by iptables rather than nftables"
                ),
                "`ambit check --on-node` there checks whether its modules are complete",
            )),
            _ => {}
        }
        if !is_ready(node) {
            findings.push(Finding::new(
                FindingLevel::Warning,
                &about,
                "it is not ready",
                format!("`kubectl describe node {}` shows the reason", name(node)),
            ));
        }
    }
}

fn is_ready(node: &Node) -> bool {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Parses the major and minor version in a kernel release or an image's tag.
pub(super) fn parse_version(text: &str) -> Option<(u64, u64)> {
    let mut parts = text.split(['.', '-', '+']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn check_crds(snapshot: &Snapshot, findings: &mut Vec<Finding>) {
    let ours = render::render_crds().unwrap_or_default().into_iter();
    let ours = ours.filter_map(|crd| serde_json::from_value(crd).ok());
    for ours in ours.collect::<Vec<CustomResourceDefinition>>() {
        let wanted = name(&ours);
        let about = format!("definition {wanted}");
        let Some(there) = snapshot.crds.iter().find(|crd| name(*crd) == wanted) else {
            if snapshot.inventory.is_some() {
                findings.push(Finding::new(
                    FindingLevel::Error,
                    about,
                    "it is missing: objects of that kind cannot be made",
                    "`ambit upgrade` brings it back",
                ));
            }
            continue;
        };
        let served = there.spec.versions.iter().filter(|version| version.served);
        let served: Vec<_> = served.map(|version| version.name.as_str()).collect();
        let stored = ours.spec.versions.iter().find(|version| version.storage);
        let needed = stored.map_or("v1", |version| version.name.as_str());
        if !served.contains(&needed) {
            findings.push(Finding::new(
                FindingLevel::Error,
                about,
                format!("it is old: it serves {} and not {needed}", served.join(", ")),
                "upgrade the definitions that came with Istio, or delete them before the installation",
            ));
        } else if !is_managed_by_ambit(there) {
            findings.push(Finding::new(
                FindingLevel::Info,
                about,
                "it was brought by another, and stays as it is",
                "",
            ));
        }
    }
}

/// Checks the CRDs of the Gateway API, which waypoints and routes need.
fn check_gateways(snapshot: &Snapshot, findings: &mut Vec<Finding>) {
    let there = |wanted: &str| {
        let mut crds = snapshot.crds.iter();
        crds.find(|crd| name(*crd) == wanted)
    };
    let all = gateway_api::REQUIRED_CRDS.into_iter();
    let found: Vec<_> = all.filter_map(there).collect();
    if found.is_empty() {
        if snapshot.inventory.is_some() {
            let finding = "the Gateway API is not installed: there can be no waypoints";
            findings.push(Finding::new(
                FindingLevel::Info,
                "cluster",
                finding,
                gateway_api::INSTALL_ADVICE,
            ));
        }
        return;
    }
    for definition in found {
        let about = format!("definition {}", name(definition));
        match gateway_api::find_crd_problem(definition) {
            Some(gateway_api::CrdProblem::NotServed(served)) => findings.push(Finding::new(
                FindingLevel::Error,
                about,
                format!("it is old: it serves {served} and not v1"),
                gateway_api::INSTALL_ADVICE,
            )),
            Some(gateway_api::CrdProblem::UnknownRelease(unknown)) => findings.push(Finding::new(
                FindingLevel::Warning,
                about,
                unknown.to_string(),
                gateway_api::INSTALL_ADVICE,
            )),
            None => {}
        }
    }
}

fn check_pod_security(snapshot: &Snapshot, findings: &mut Vec<Finding>) {
    let mesh = snapshot
        .namespaces
        .iter()
        .find(|namespace| name(*namespace) == snapshot.mesh_namespace);
    let Some(mesh) = mesh else {
        return;
    };
    let key = "pod-security.kubernetes.io/enforce";
    if let Some(level) = label(mesh, key).filter(|level| *level != "privileged") {
        findings.push(Finding::new(
            FindingLevel::Error,
            format!("namespace {}", name(mesh)),
            format!("Pod Security lets only {level} pods in: the mesh's own pods need more"),
            format!(
                "kubectl label --overwrite namespace {} {key}=privileged",
                name(mesh)
            ),
        ));
    }
}

fn check_namespaces(snapshot: &Snapshot, findings: &mut Vec<Finding>) {
    for namespace in &snapshot.namespaces {
        if label(namespace, remove::DATAPLANE_MODE_LABEL) != Some(remove::AMBIENT_MODE) {
            continue;
        }
        let about = format!("namespace {}", name(namespace));
        let rules = snapshot.rules.as_ref();
        if rules.is_some_and(|rules| rules.excludes_namespace(name(namespace))) {
            findings.push(Finding::new(
                FindingLevel::Warning,
                &about,
                "it is labelled for the mesh, but excluded by the value cni.excludeNamespaces",
                "remove it from that list, or remove the label",
            ));
        }
        let injected = label(namespace, "istio-injection") == Some("enabled")
            || label(namespace, "istio.io/rev").is_some();
        if injected {
            findings.push(Finding::new(
                FindingLevel::Warning,
                &about,
                "it also enables sidecar injection: pods with a sidecar stay outside",
                format!(
                    "kubectl label namespace {} istio-injection- istio.io/rev-",
                    name(namespace)
                ),
            ));
        }
        if annotation(namespace, "linkerd.io/inject") == Some("enabled") {
            findings.push(Finding::new(
                FindingLevel::Warning,
                about,
                "it also enables Linkerd's injection: two meshes would capture the same traffic",
                format!(
                    "kubectl annotate namespace {} linkerd.io/inject-",
                    name(namespace)
                ),
            ));
        }
    }
}

fn check_installation(snapshot: &Snapshot, findings: &mut Vec<Finding>) {
    if let Some(inventory) = &snapshot.inventory
        && inventory.version != env!("CARGO_PKG_VERSION")
    {
        findings.push(Finding::new(
            FindingLevel::Info,
            format!("namespace {}", snapshot.mesh_namespace),
            format!(
                "Ambit {} is installed; this is {}",
                inventory.version,
                env!("CARGO_PKG_VERSION")
            ),
            "`ambit upgrade` installs this version",
        ));
    }
    for object in &snapshot.deployments {
        if is_in_mesh_namespace(snapshot, object) {
            findings.extend(unready_finding(
                "Deployment",
                name(object),
                deployment_rollout(object),
            ));
        }
    }
    for object in &snapshot.daemon_sets {
        if is_in_mesh_namespace(snapshot, object) {
            let state = daemon_set_rollout(object, &snapshot.mesh_pods);
            findings.extend(unready_finding("DaemonSet", name(object), state));
        }
    }
}

fn is_in_mesh_namespace(snapshot: &Snapshot, object: &impl Resource) -> bool {
    is_managed_by_ambit(object) && namespace_of(object) == snapshot.mesh_namespace
}

fn unready_finding(kind: &str, name: &str, state: Rollout) -> Option<Finding> {
    let Rollout::InProgress(what) = state else {
        return None;
    };
    let about = format!("{kind} {name}");
    let advice = "`ambit status` shows details";
    Some(Finding::new(FindingLevel::Error, about, what, advice))
}

#[cfg(test)]
mod tests {
    use ambit_install::inventory::Inventory;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;
    use crate::membership::MembershipRules;

    fn typed<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn only_finding(snapshot: &Snapshot) -> (FindingLevel, String) {
        let findings = findings(snapshot);
        assert_eq!(findings.len(), 1, "{findings:?}");
        (
            findings[0].level,
            format!("{}: {}", findings[0].about, findings[0].finding),
        )
    }

    fn healthy_snapshot() -> Snapshot {
        Snapshot {
            minor: "34".to_owned(),
            mesh_namespace: "istio-system".to_owned(),
            ..Snapshot::default()
        }
    }

    fn node(kernel: &str, system: &str) -> Node {
        typed(json!({
            "metadata": {"name": "n1"},
            "status": {
                "nodeInfo": {"kernelVersion": kernel, "operatingSystem": system},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }))
    }

    #[test]
    fn a_good_cluster_has_no_findings() {
        let snapshot = Snapshot {
            nodes: vec![node("6.8.0-45-generic", "linux")],
            minor: "31+".into(),
            ..healthy_snapshot()
        };
        assert_eq!(findings(&snapshot), []);
    }

    #[test]
    fn old_versions() {
        let snapshot = Snapshot {
            minor: "27".into(),
            ..healthy_snapshot()
        };
        assert_eq!(
            only_finding(&snapshot),
            (FindingLevel::Error, "cluster: its version is 1.27".into())
        );
        let with = |kernel, system| Snapshot {
            nodes: vec![node(kernel, system)],
            ..healthy_snapshot()
        };
        assert_eq!(
            only_finding(&with("3.10.0-1160.el7", "linux")).0,
            FindingLevel::Error
        );
        assert_eq!(
            only_finding(&with("4.18.0-553.el8_10", "linux")).0,
            FindingLevel::Warning
        );
        assert_eq!(
            only_finding(&with("10.0.20348", "windows")).0,
            FindingLevel::Info
        );
    }

    #[test]
    fn foreign_definitions_must_serve_v1() {
        let crd = |versions: Value| {
            typed(json!({
                "metadata": {"name": "serviceentries.networking.istio.io"},
                "spec": {"versions": versions},
            }))
        };
        let with = |crd: CustomResourceDefinition| Snapshot {
            crds: vec![crd],
            ..healthy_snapshot()
        };
        let old =
            crd(json!([{"name": "v1beta1", "served": true}, {"name": "v1", "served": false}]));
        assert_eq!(only_finding(&with(old)).0, FindingLevel::Error);
        let new = crd(json!([{"name": "v1", "served": true}]));
        assert_eq!(only_finding(&with(new)).0, FindingLevel::Info);
        let missing = Snapshot {
            inventory: Some(Inventory {
                version: env!("CARGO_PKG_VERSION").into(),
                ..Default::default()
            }),
            ..healthy_snapshot()
        };
        let found = findings(&missing);
        let errors = found
            .iter()
            .filter(|finding| finding.level == FindingLevel::Error);
        assert_eq!(errors.count(), 10);
        assert!(found.len() == 11 && found[10].finding.contains("Gateway API"));
    }

    #[test]
    fn the_gateway_api_must_serve_v1_and_be_of_a_known_release() {
        let with = |version: &str, release: &str| Snapshot {
            crds: vec![typed(json!({
                "metadata": {"name": "gateways.gateway.networking.k8s.io",
                    "annotations": {"gateway.networking.k8s.io/bundle-version": release}},
                "spec": {"versions": [{"name": version, "served": true}]},
            }))],
            ..healthy_snapshot()
        };
        assert_eq!(findings(&with("v1", "v1.6.3")), []);
        assert_eq!(only_finding(&with("v1", "v7.0.0")).0, FindingLevel::Warning);
        assert_eq!(
            only_finding(&with("v1beta1", "v0.8.0")).0,
            FindingLevel::Error
        );
    }

    #[test]
    fn mesh_namespace_must_admit_privileged_pods() {
        let namespace = |level: &str| {
            typed(json!({"metadata": {"name": "istio-system", "labels": {
            "pod-security.kubernetes.io/enforce": level}}}))
        };
        let with = |level| Snapshot {
            namespaces: vec![namespace(level)],
            ..healthy_snapshot()
        };
        assert_eq!(only_finding(&with("restricted")).0, FindingLevel::Error);
        assert_eq!(findings(&with("privileged")), []);
    }

    #[test]
    fn contradictory_namespace_labels_are_found() {
        let namespace = |labels: Value| typed(json!({"metadata": {"name": "a", "labels": labels}}));
        let with = |labels| Snapshot {
            namespaces: vec![namespace(labels)],
            ..healthy_snapshot()
        };
        let both = json!({"istio.io/dataplane-mode": "ambient", "istio-injection": "enabled"});
        assert_eq!(only_finding(&with(both)).0, FindingLevel::Warning);
        assert_eq!(findings(&with(json!({"istio-injection": "enabled"}))), []);
        let mut excluded = with(json!({"istio.io/dataplane-mode": "ambient"}));
        let config = typed(json!({"data": {"EXCLUDE_NAMESPACES": "a"}}));
        excluded.rules = Some(MembershipRules::from_agent_config(
            Some(&config),
            "istio-system",
        ));
        assert_eq!(only_finding(&excluded).0, FindingLevel::Warning);
    }

    #[test]
    fn an_installation_that_is_not_ready() {
        let set = typed(json!({
            "kind": "DaemonSet",
            "metadata": {"name": "ztunnel", "namespace": "istio-system",
                         "labels": {"app.kubernetes.io/part-of": "ambit"}},
            "status": {"desiredNumberScheduled": 2},
        }));
        let snapshot = Snapshot {
            daemon_sets: vec![set],
            ..healthy_snapshot()
        };
        assert_eq!(
            only_finding(&snapshot),
            (
                FindingLevel::Error,
                "DaemonSet ztunnel: 0 of 2 pods are up to date".into()
            )
        );
    }
}
