//! Parsing of pods, each of which is a workload.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ambit_k8s_api::{Pod, enablement, is_dns_name, labels};
use ambit_model::ArcStr;
use k8s_openapi::api::core::v1::{Container, PodSpec, PodStatus};

use crate::{
    config::MeshConfig,
    labels::Labels,
    objects::readable::{FetchExtent, FetchedKind, Parsed, Readable},
    problem::FieldError,
};

impl FetchedKind for Pod {
    const FETCH_EXTENT: FetchExtent = FetchExtent::Whole { labels: None };

    fn without_unused_fields(self) -> Self {
        let container = |container: Container| Container {
            name: container.name,
            ports: container.ports,
            restart_policy: container.restart_policy,
            ..Container::default()
        };
        let containers = |all: Vec<Container>| all.into_iter().map(container).collect();
        let spec = self.spec.map(|spec| PodSpec {
            containers: containers(spec.containers),
            init_containers: spec.init_containers.map(containers),
            host_network: spec.host_network,
            node_name: spec.node_name,
            service_account_name: spec.service_account_name,
            ..PodSpec::default()
        });
        let status = self.status.map(|status| PodStatus {
            phase: status.phase,
            pod_ip: status.pod_ip,
            pod_ips: status.pod_ips,
            host_ip: status.host_ip,
            host_ips: status.host_ips,
            conditions: status
                .conditions
                .map(|all| all.into_iter().filter(|one| one.type_ == "Ready").collect()),
            ..PodStatus::default()
        });
        Self {
            metadata: self.metadata,
            spec,
            status,
        }
    }
}

impl Readable for Pod {
    type Input = PodInput;

    fn read(&self, _: &MeshConfig) -> Result<Parsed<PodInput>, FieldError> {
        PodInput::read(self).map(Parsed::without_notes)
    }
}

/// Parsed Pod object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodInput {
    pub(crate) name: ArcStr,
    pub(crate) namespace: ArcStr,
    pub(crate) uid: String,
    pub(crate) labels: Labels,
    pub(crate) ips: Vec<IpAddr>,
    /// Addresses of the pod's node.
    pub(crate) host_ips: BTreeSet<IpAddr>,
    pub(crate) node: ArcStr,
    pub(crate) service_account: ArcStr,
    pub(crate) is_terminated: bool,
    pub(crate) is_ready: bool,
    /// Whether the pod is terminating and still reports that it is ready.
    pub(crate) is_ready_while_terminating: bool,
    pub(crate) uses_host_network: bool,
    pub(crate) has_sidecar: bool,
    pub(crate) is_captured: bool,
    pub(crate) has_native_tunnel: bool,
    pub(crate) workload_name: ArcStr,
    /// TCP container ports by name.
    pub(crate) ports: BTreeMap<String, u16>,
}

impl PodInput {
    pub(crate) fn read(pod: &Pod) -> Result<Self, FieldError> {
        let metadata = &pod.metadata;
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();
        let labels = metadata.labels.clone().unwrap_or_default();
        let annotation = |name: &str| metadata.annotations.as_ref().and_then(|all| all.get(name));
        let account = spec
            .and_then(|spec| spec.service_account_name.as_deref())
            .filter(|account| !account.is_empty())
            .unwrap_or("default");
        if !is_dns_name(account, 253) {
            return Err(FieldError::new(
                "spec.serviceAccountName",
                format!("{account:?} is not a valid name"),
            ));
        }
        let phase = status
            .and_then(|status| status.phase.as_deref())
            .unwrap_or_default();
        let ready = status
            .and_then(|status| status.conditions.as_ref())
            .is_some_and(|conditions| {
                conditions
                    .iter()
                    .any(|condition| condition.type_ == "Ready" && condition.status == "True")
            });
        let is_leaving = metadata.deletion_timestamp.is_some();
        let native_tunnel = labels
            .get(labels::TUNNEL)
            .is_some_and(|value| value.split(',').any(|protocol| protocol.trim() == "http"));
        Ok(Self {
            name: metadata.name.as_deref().unwrap_or_default().into(),
            namespace: metadata.namespace.as_deref().unwrap_or("default").into(),
            uid: metadata.uid.clone().unwrap_or_default(),
            ips: read_ips(pod)?,
            host_ips: host_ips(pod),
            node: spec
                .and_then(|spec| spec.node_name.as_deref())
                .unwrap_or_default()
                .into(),
            service_account: account.into(),
            is_terminated: matches!(phase, "Succeeded" | "Failed"),
            is_ready: ready && !is_leaving,
            is_ready_while_terminating: ready && is_leaving,
            uses_host_network: spec.and_then(|spec| spec.host_network).unwrap_or(false),
            has_sidecar: metadata
                .annotations
                .as_ref()
                .is_some_and(enablement::has_sidecar),
            is_captured: annotation(labels::REDIRECTION)
                .is_some_and(|value| value == labels::REDIRECTION_ENABLED),
            has_native_tunnel: native_tunnel,
            workload_name: workload_name(pod, &labels),
            ports: spec.map(named_ports).unwrap_or_default(),
            labels,
        })
    }

    /// Whether the pod has a workload record: it has an address and has not terminated.
    pub(crate) fn is_published(&self) -> bool {
        !self.is_terminated && !self.ips.is_empty()
    }
}

/// Returns the addresses of the pod's node (`status.hostIPs` and `hostIP`). Texts that are not IP addresses are
/// skipped: the kubelet writes the fields, and no record contains them.
fn host_ips(pod: &Pod) -> BTreeSet<IpAddr> {
    let status = pod.status.as_ref();
    let several = status.and_then(|status| status.host_ips.as_ref());
    let several = several.into_iter().flatten().map(|one| one.ip.as_str());
    let one = status.and_then(|status| status.host_ip.as_deref());
    let texts = several.chain(one);
    texts
        .filter_map(|text| text.parse::<IpAddr>().ok())
        .map(|ip| ip.to_canonical())
        .collect()
}

fn read_ips(pod: &Pod) -> Result<Vec<IpAddr>, FieldError> {
    let Some(status) = &pod.status else {
        return Ok(Vec::new());
    };
    let several: Vec<_> = status
        .pod_ips
        .iter()
        .flatten()
        .enumerate()
        .map(|(index, ip)| (format!("status.podIPs[{index}].ip"), ip.ip.as_str()))
        .collect();
    let texts = if several.is_empty() {
        status
            .pod_ip
            .as_deref()
            .map(|ip| ("status.podIP".to_owned(), ip))
            .into_iter()
            .collect()
    } else {
        several
    };
    let mut ips = Vec::with_capacity(texts.len());
    for (field, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
        let ip: IpAddr = text
            .parse()
            .map_err(|_| FieldError::new(field, format!("{text:?} is not an IP address")))?;
        let ip = ip.to_canonical();
        if !ips.contains(&ip) {
            ips.push(ip);
        }
    }
    Ok(ips)
}

fn named_ports(spec: &PodSpec) -> BTreeMap<String, u16> {
    let sidecar = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let containers = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten().filter(sidecar));
    let mut ports = BTreeMap::new();
    for port in containers.flat_map(|container| container.ports.iter().flatten()) {
        let is_tcp = port
            .protocol
            .as_deref()
            .is_none_or(|protocol| protocol == "TCP");
        if let (true, Some(name), Ok(number)) =
            (is_tcp, &port.name, u16::try_from(port.container_port))
        {
            ports.entry(name.clone()).or_insert(number);
        }
    }
    ports
}

/// Returns the name of the workload that owns the pod: the pod's label, the owner's name by the usual naming rules (a
/// Deployment's, for its ReplicaSet), or the pod's own name.
fn workload_name(pod: &Pod, labels: &Labels) -> ArcStr {
    if let Some(name) = labels
        .get(labels::WORKLOAD_NAME)
        .filter(|name| !name.is_empty())
    {
        return name.as_str().into();
    }
    let metadata = &pod.metadata;
    let own_name = metadata.name.as_deref().unwrap_or_default();
    let generated = metadata
        .generate_name
        .as_deref()
        .is_some_and(|name| !name.is_empty());
    let owner = metadata
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true));
    let (true, Some(owner)) = (generated, owner) else {
        return own_name.into();
    };
    let name = owner.name.as_str();
    let without_hash = |label: &str| {
        labels
            .get(label)
            .and_then(|hash| name.strip_suffix(hash.as_str())?.strip_suffix('-'))
    };
    let by_rule = match owner.kind.as_str() {
        "ReplicaSet" => without_hash(labels::POD_TEMPLATE_HASH)
            .or_else(|| without_hash(labels::ROLLOUTS_POD_TEMPLATE_HASH)),
        "ReplicationController" => metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(labels::DEPLOYMENT_CONFIG))
            .map(String::as_str),
        "Job" => name.rsplit_once('-').and_then(|(base, number)| {
            let is_time = (8..=10).contains(&number.len())
                && number.bytes().all(|byte| byte.is_ascii_digit());
            is_time.then_some(base)
        }),
        _ => None,
    };
    by_rule
        .filter(|name| !name.is_empty())
        .unwrap_or(name)
        .into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_that_the_mesh_reads_is_cut_away() {
        let pod: Pod = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "cart-7d-x2", "namespace": "shop", "uid": "u", "generateName": "cart-7d-",
                "labels": {"app": "cart", "pod-template-hash": "7d"},
                "annotations": {"ambient.istio.io/redirection": "enabled"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "cart-7d",
                    "uid": "r", "controller": true}],
            },
            "spec": {
                "nodeName": "n1", "serviceAccountName": "cart", "hostNetwork": true,
                "containers": [{"name": "a", "image": "i", "env": [{"name": "A", "value": "b"}],
                    "ports": [{"name": "web", "containerPort": 8080}]}],
                "initContainers": [{"name": "b", "restartPolicy": "Always",
                    "ports": [{"name": "admin", "containerPort": 9000}]}],
                "volumes": [{"name": "v", "emptyDir": {}}],
            },
            "status": {
                "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
                "conditions": [{"type": "Ready", "status": "True"}, {"type": "Initialized", "status": "True"}],
            },
        }))
        .unwrap();
        let understood = PodInput::read(&pod).unwrap();
        let cut = pod.without_unused_fields();
        assert_eq!(PodInput::read(&cut).unwrap(), understood);
        assert_eq!(understood.workload_name, "cart");
        assert!(cut.spec.unwrap().volumes.is_none());
    }
}
