//! What attaches pods and services to waypoints, where the user does not say it.
//!
//! A cluster that comes from Istio has labels that name waypoints, and objects that rely on having none without one.
//! There, labels alone attach; elsewhere, Gateways attach by themselves what is theirs. It is found out once: an
//! installation keeps what it has.

use ambit_k8s_api::{labels::USE_WAYPOINT, revisions};

use crate::{
    apply::{self, InstallError},
    cluster::{Cluster, ClusterError},
    values::Overrides,
};

/// The value of the chart.
const VALUE: [&str; 2] = ["meshConfig", "waypointAttachment"];
/// Kinds whose labels name waypoints, in the versions that there are.
const KINDS: &[(&str, &str)] = &[
    ("v1", "Namespace"),
    ("v1", "Service"),
    ("v1", "Pod"),
    ("networking.istio.io/v1", "ServiceEntry"),
    ("networking.istio.io/v1beta1", "ServiceEntry"),
    ("networking.istio.io/v1", "WorkloadEntry"),
    ("networking.istio.io/v1beta1", "WorkloadEntry"),
];

/// Sets the value unless the user did: as it is in the installation of a namespace, whose default revision all others
/// follow, or by what is in the cluster if there is none. `say` gets the choice and why.
///
/// # Errors
/// When the API server refuses or is away.
pub async fn choose(
    cluster: &Cluster,
    namespace: &str,
    overrides: &mut Overrides,
    say: &dyn Fn(&str),
) -> Result<(), InstallError> {
    let path = VALUE.join(".");
    if overrides.text(&VALUE).is_some() {
        return Ok(());
    }
    if let Some(before) = apply::installed(cluster, namespace, revisions::DEFAULT).await? {
        let pointer = format!("/{}", VALUE.join("/"));
        let value = before.values.pointer(&pointer);
        if let Some(value) = value.and_then(serde_json::Value::as_str) {
            overrides.set(&format!("{path}={value}"), true)?;
            say(&format!("{path}: {value}, as it is installed"));
        }
        return Ok(());
    }
    if let Some(object) = labelled(cluster).await? {
        overrides.set(&format!("{path}=labels"), true)?;
        say(&format!(
            "{path}: labels, because {object} has the label {USE_WAYPOINT}; --set {path}=seed lets Gateways also \
             take their namespaces by themselves"
        ));
    }
    Ok(())
}

/// An object whose label names a waypoint, if there is any.
async fn labelled(cluster: &Cluster) -> Result<Option<String>, ClusterError> {
    for (version, kind) in KINDS {
        let found = cluster
            .list(version, kind, None, Some(USE_WAYPOINT))
            .await?;
        let Some(first) = found.first() else {
            continue;
        };
        let text = |pointer: &str| first.pointer(pointer).and_then(serde_json::Value::as_str);
        let name = text("/metadata/name").unwrap_or_default();
        return Ok(Some(match text("/metadata/namespace") {
            Some(namespace) => format!("{kind} {namespace}/{name}"),
            None => format!("{kind} {name}"),
        }));
    }
    Ok(None)
}
