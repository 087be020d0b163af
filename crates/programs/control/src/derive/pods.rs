//! What the mesh reads from a Pod, and which pods run where.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use ambit_k8s_api::{Pod, is_dns_name, labels};
use ambit_model::ArcStr;
use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::Labels;
use crate::problems::FieldError;

/// A pod as the mesh sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodInput {
    pub(crate) name: ArcStr,
    pub(crate) namespace: ArcStr,
    pub(crate) uid: String,
    pub(crate) labels: Labels,
    pub(crate) ips: Vec<IpAddr>,
    pub(crate) node: ArcStr,
    pub(crate) service_account: ArcStr,
    pub(crate) terminated: bool,
    pub(crate) ready: bool,
    pub(crate) host_network: bool,
    pub(crate) captured: bool,
    pub(crate) native_tunnel: bool,
    pub(crate) workload_name: ArcStr,
    /// Named TCP ports.
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
        let native_tunnel = labels
            .get(labels::TUNNEL)
            .is_some_and(|value| value.split(',').any(|protocol| protocol.trim() == "http"));
        Ok(Self {
            name: metadata.name.as_deref().unwrap_or_default().into(),
            namespace: metadata.namespace.as_deref().unwrap_or("default").into(),
            uid: metadata.uid.clone().unwrap_or_default(),
            ips: read_ips(pod)?,
            node: spec
                .and_then(|spec| spec.node_name.as_deref())
                .unwrap_or_default()
                .into(),
            service_account: account.into(),
            terminated: matches!(phase, "Succeeded" | "Failed"),
            ready: ready && metadata.deletion_timestamp.is_none(),
            host_network: spec.and_then(|spec| spec.host_network).unwrap_or(false),
            captured: annotation(labels::REDIRECTION)
                .is_some_and(|value| value == labels::REDIRECTION_ENABLED),
            native_tunnel,
            workload_name: workload_name(pod, &labels),
            ports: spec.map(named_ports).unwrap_or_default(),
            labels,
        })
    }

    /// Whether it is an endpoint at all.
    pub(crate) fn is_published(&self) -> bool {
        !self.terminated && !self.ips.is_empty()
    }
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

/// The name of what made the pod: its label, its owner by the usual naming rules, or its own name.
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

/// Canonical service name and revision, from labels.
pub(crate) fn canonical(labels: &Labels, workload_name: &ArcStr) -> (ArcStr, ArcStr) {
    let first = |names: [&str; 3]| {
        names
            .into_iter()
            .find_map(|name| labels.get(name).filter(|value| !value.is_empty()))
    };
    let name = first([labels::CANONICAL_NAME, labels::APP_NAME, labels::APP]);
    let revision = first([
        labels::CANONICAL_REVISION,
        labels::APP_VERSION,
        labels::VERSION,
    ]);
    (
        name.map_or_else(|| workload_name.clone(), |name| name.as_str().into()),
        revision.map_or_else(|| "latest".into(), |revision| revision.as_str().into()),
    )
}

// === pods and their nodes ===

/// What the certificate authority must know of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    /// Kubernetes uid; empty if unknown.
    pub uid: String,
    /// Service account.
    pub service_account: ArcStr,
    /// Node; empty while not scheduled.
    pub node: ArcStr,
    /// Neither succeeded nor failed.
    pub live: bool,
}

/// Which pods run where. Follows the pods without delay.
#[derive(Debug, Default)]
pub struct PodDirectory {
    pods: HashMap<(ArcStr, ArcStr), PodFacts>,
    /// Live pods by node and identity.
    placed: HashMap<ArcStr, BTreeMap<(ArcStr, ArcStr), BTreeSet<ArcStr>>>,
}

impl PodDirectory {
    /// A pod is there, or is as it is now.
    pub(crate) fn insert(&mut self, pod: &PodInput) {
        self.remove(&pod.namespace, &pod.name);
        let facts = PodFacts {
            uid: pod.uid.clone(),
            service_account: pod.service_account.clone(),
            node: pod.node.clone(),
            live: !pod.terminated,
        };
        if facts.live && !facts.node.is_empty() {
            self.placed
                .entry(facts.node.clone())
                .or_default()
                .entry((pod.namespace.clone(), facts.service_account.clone()))
                .or_default()
                .insert(pod.name.clone());
        }
        self.pods
            .insert((pod.namespace.clone(), pod.name.clone()), facts);
    }

    /// A pod is gone.
    pub(crate) fn remove(&mut self, namespace: &ArcStr, name: &ArcStr) {
        let Some(facts) = self.pods.remove(&(namespace.clone(), name.clone())) else {
            return;
        };
        let Some(identities) = self.placed.get_mut(&facts.node) else {
            return;
        };
        let identity = (namespace.clone(), facts.service_account);
        if let Some(names) = identities.get_mut(&identity) {
            names.remove(name);
            if names.is_empty() {
                identities.remove(&identity);
            }
        }
        if identities.is_empty() {
            self.placed.remove(&facts.node);
        }
    }

    /// A pod by name.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&PodFacts> {
        self.pods.get(&(namespace.into(), name.into()))
    }

    /// Whether a live pod of this identity is on the node.
    pub fn runs_on(&self, node: &str, namespace: &str, service_account: &str) -> bool {
        self.placed.get(node).is_some_and(|identities| {
            identities.contains_key(&(namespace.into(), service_account.into()))
        })
    }
}
