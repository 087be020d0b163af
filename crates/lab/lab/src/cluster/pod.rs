//! Pods of the cluster with their node, and their observed state.

use std::{fmt, net::IpAddr, sync::Arc};

use ambit_k8s_api::{ObjectKey, Pod};
use k8s_openapi::api::core::v1::{Container, PodSpec};

/// One incarnation (UID) of a pod, bound to its node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodPlan {
    pub(crate) uid: String,
    pub(crate) node: String,
    pub(crate) pod: Arc<Pod>,
    /// Deployment of which the pod is a replica; `None` for a pod of the manifests.
    pub(crate) deployment: Option<ObjectKey>,
}

impl PodPlan {
    pub(crate) fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or("default")
    }

    pub(crate) fn name(&self) -> &str {
        self.pod.metadata.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn full_name(&self) -> String {
        format!("{}/{}", self.namespace(), self.name())
    }

    pub(crate) fn service_account(&self) -> &str {
        let spec = self.pod.spec.as_ref();
        spec.and_then(|spec| {
            spec.service_account_name
                .as_deref()
                .or(spec.service_account.as_deref())
        })
        .filter(|name| !name.is_empty())
        .unwrap_or("default")
    }

    /// Returns the name of the pod's first owner, such as a ReplicaSet.
    pub(crate) fn owner(&self) -> Option<&str> {
        let owners = self
            .pod
            .metadata
            .owner_references
            .as_deref()
            .unwrap_or_default();
        owners.first().map(|owner| owner.name.as_str())
    }

    pub(crate) fn hostname(&self) -> String {
        let spec = self.pod.spec.as_ref();
        let hostname = spec.and_then(|spec| spec.hostname.clone());
        hostname.unwrap_or_else(|| self.name().chars().take(63).collect())
    }

    pub(crate) fn is_host_network(&self) -> bool {
        self.pod
            .spec
            .as_ref()
            .and_then(|spec| spec.host_network)
            .unwrap_or(false)
    }

    pub(crate) fn spec(&self) -> Option<&PodSpec> {
        self.pod.spec.as_ref()
    }

    pub(crate) fn containers(&self) -> &[Container] {
        self.pod.spec.as_ref().map_or(&[], |spec| &spec.containers)
    }

    /// Whether the pod has a projected volume with a service account token for this audience.
    pub(crate) fn has_token_volume(&self, audience: &str) -> bool {
        let volumes = self.spec().and_then(|spec| spec.volumes.as_deref());
        let sources = volumes
            .unwrap_or_default()
            .iter()
            .filter_map(|volume| volume.projected.as_ref()?.sources.as_deref());
        sources
            .flatten()
            .filter_map(|source| source.service_account_token.as_ref())
            .any(|token| token.audience.as_deref() == Some(audience))
    }

    pub(crate) fn container_names(&self) -> Vec<String> {
        let init = self
            .pod
            .spec
            .as_ref()
            .and_then(|spec| spec.init_containers.as_deref());
        let init = init.unwrap_or_default();
        self.containers()
            .iter()
            .chain(init)
            .map(|container| container.name.clone())
            .collect()
    }
}

/// Phase of a pod, as in Kubernetes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl Phase {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// State of a pod, as its runner observed it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodObservation {
    pub(crate) phase: Phase,
    pub(crate) ips: Vec<IpAddr>,
    pub(crate) containers: Vec<ContainerObservation>,
    /// Reason why the pod makes no progress, for instance a failed sandbox.
    pub(crate) message: Option<String>,
}

impl PodObservation {
    pub(crate) fn is_ready(&self) -> bool {
        self.phase == Phase::Running && self.containers.iter().all(|container| container.ready)
    }
}

/// State of a container, as the pod's runner observed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerObservation {
    pub(crate) name: String,
    pub(crate) state: ContainerState,
    pub(crate) ready: bool,
    pub(crate) restarts: u32,
}

impl ContainerObservation {
    pub(crate) fn new(name: &str) -> Self {
        let state = ContainerState::Waiting("ContainerCreating".into());
        Self {
            name: name.to_owned(),
            state,
            ready: false,
            restarts: 0,
        }
    }
}

/// State of a container's process, with the reason why it waits, or its exit code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContainerState {
    Waiting(String),
    Running,
    Exited(i32),
}

impl fmt::Display for ContainerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting(why) => f.write_str(why),
            Self::Running => f.write_str("running"),
            Self::Exited(code) => write!(f, "exited with {code}"),
        }
    }
}

/// Pod of the cluster, with the state that its runner last reported.
pub(super) struct PodRecord {
    pub(super) plan: PodPlan,
    pub(super) observed: PodObservation,
    pub(super) terminating: bool,
}
