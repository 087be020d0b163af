//! Pods and Deployments of the example.

use ambit_lab::{PodStatus, Status};

use crate::{CliError, ErrorKind};

pub(super) const FRONTEND: (&str, &str) = ("shop", "frontend");

pub(super) const ORDERS: (&str, &str) = ("shop", "orders");

pub(super) const LEDGER: (&str, &str) = ("shop", "ledger");

pub(super) const BATCH: (&str, &str) = ("legacy", "batch");

pub(super) const REPORTS: (&str, &str) = ("legacy", "reports");

/// Returns a pod of the Deployment of this namespace and name.
pub(super) fn pod<'a>(
    status: &'a Status,
    (namespace, name): (&str, &str),
) -> Result<&'a PodStatus, CliError> {
    let of =
        |pod: &&PodStatus| pod.namespace == namespace && pod.name.starts_with(&format!("{name}-"));
    status.pods.iter().find(of).ok_or_else(|| {
        CliError::new(
            ErrorKind::NotFound,
            format!("the manifests have no pod {namespace}/{name}"),
        )
    })
}

/// Returns the name of a pod, `namespace/name`.
pub(super) fn pod_name(pod: &PodStatus) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

/// Returns the name of a pod's Deployment, `namespace/deployment`.
pub(super) fn deployment_name(pod: &PodStatus) -> String {
    let mut name = pod.name.as_str();
    for _ in 0..2 {
        name = name.rsplit_once('-').map_or(name, |(before, _)| before);
    }
    format!("{}/{name}", pod.namespace)
}
