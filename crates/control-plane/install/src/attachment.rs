//! What attaches pods and services to waypoints, where the user does not say it.
//!
//! A cluster that comes from Istio has labels that name waypoints, or Istio's control plane, and objects that rely on
//! having no waypoint without a label. There, labels alone attach; elsewhere, Gateways attach by themselves what is
//! theirs. It is found out once: an installation keeps what it has.

use ambit_k8s_api::{labels::USE_WAYPOINT, revisions};
use k8s_openapi::api::apps::v1::Deployment;

use crate::{
    apply,
    cluster::{Cluster, ClusterError},
    error::InstallError,
    object::{self, ObjectRef},
    values::{self, Overrides},
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

/// Sets the value unless the user did: as it is in the revision's installation or in that of the default one, which new
/// revisions follow, or by what is in the cluster if there is none. `say` gets the choice and why.
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
    let revision = overrides.text(&["global", "revision"]);
    let revision = revision.unwrap_or(revisions::DEFAULT).to_owned();
    for revision in [revision.as_str(), revisions::DEFAULT] {
        let Some(before) = apply::installed(cluster, namespace, revision).await? else {
            continue;
        };
        let text = |path| values::text(&before.values, path);
        if text(&["global", "components"]) == Some("node") {
            continue;
        }
        if let Some(value) = text(&VALUE) {
            overrides.set(&format!("{path}={value}"), true)?;
            say(&format!("{path}: {value}, as it is installed"));
        }
        return Ok(());
    }
    let because = match labelled(cluster).await? {
        Some(object) => Some(format!("{object} has the label {USE_WAYPOINT}")),
        None => istio(cluster).await?,
    };
    if let Some(because) = because {
        overrides.set(&format!("{path}=labels"), true)?;
        say(&format!(
            "{path}: labels, because {because}; --set {path}=seed lets Gateways also take their namespaces by themselves"
        ));
    }
    Ok(())
}

/// Istio's control plane, if there is one: without a label nothing has a waypoint there.
async fn istio(cluster: &Cluster) -> Result<Option<String>, ClusterError> {
    let found: Vec<Deployment> = cluster.all(None, Some("app=istiod")).await?;
    let theirs = found.iter().find(|one| !object::is_ours(*one));
    Ok(theirs.map(|one| {
        let name =
            ObjectRef::of_kind::<Deployment>(Some(object::namespace_of(one)), object::name(one));
        format!("Istio's control plane, {name}, attaches by labels")
    }))
}

/// An object whose label names a waypoint, if there is any.
async fn labelled(cluster: &Cluster) -> Result<Option<String>, ClusterError> {
    for (version, kind) in KINDS {
        let found = cluster
            .list(version, kind, None, Some(USE_WAYPOINT))
            .await?;
        if let Some(first) = found.iter().find_map(ObjectRef::of) {
            return Ok(Some(first.to_string()));
        }
    }
    Ok(None)
}
