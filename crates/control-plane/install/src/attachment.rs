//! Chooses whether pods and services attach to waypoints only by labels (`meshConfig.waypointAttachment`), unless the
//! user sets it.
//!
//! A cluster that was used with Istio has Istio's control plane or labels that name waypoints, and its objects without
//! such a label rely on having no waypoint. There, only labels attach objects to waypoints; elsewhere, Gateways attach
//! their targets by themselves. The choice is made once: an installation keeps its value.

use ambit_k8s_api::{labels::USE_WAYPOINT, revisions};
use k8s_openapi::api::apps::v1::Deployment;

use crate::{
    apply,
    cluster::{ClusterApi, ClusterError},
    error::InstallError,
    object::{self, ObjectRef},
    values::{self, ValueOverrides},
};

/// Path of `waypointAttachment` in the chart's values.
const ATTACHMENT_PATH: [&str; 2] = ["meshConfig", "waypointAttachment"];
/// Kinds whose labels may name waypoints, with an API version of each.
const LABELLED_KINDS: &[(&str, &str)] = &[
    ("v1", "Namespace"),
    ("v1", "Service"),
    ("v1", "Pod"),
    ("networking.istio.io/v1", "ServiceEntry"),
    ("networking.istio.io/v1beta1", "ServiceEntry"),
    ("networking.istio.io/v1", "WorkloadEntry"),
    ("networking.istio.io/v1beta1", "WorkloadEntry"),
];

/// Sets `meshConfig.waypointAttachment` unless the user has set it, and reports the choice with its reason. The value
/// is that of the revision's installation, else that of the default revision's, else it depends on the objects of the
/// cluster.
///
/// # Errors
///
/// When the API server refuses or is unavailable.
pub async fn choose_waypoint_attachment(
    cluster: &ClusterApi,
    namespace: &str,
    overrides: &mut ValueOverrides,
    report_progress: &dyn Fn(&str),
) -> Result<(), InstallError> {
    let path = ATTACHMENT_PATH.join(".");
    if overrides.string_at(&ATTACHMENT_PATH).is_some() {
        return Ok(());
    }
    let revision = overrides.string_at(&["global", "revision"]);
    let revision = revision.unwrap_or(revisions::DEFAULT_REVISION).to_owned();
    for revision in [revision.as_str(), revisions::DEFAULT_REVISION] {
        let Some(before) = apply::installed_inventory(cluster, namespace, revision).await? else {
            continue;
        };
        let text = |path| values::string_at(&before.values, path);
        if text(&["global", "components"]) == Some("node") {
            continue;
        }
        if let Some(value) = text(&ATTACHMENT_PATH) {
            overrides.set(&format!("{path}={value}"), true)?;
            report_progress(&format!("{path}: {value}, as it is installed"));
        }
        return Ok(());
    }
    let because = match find_labelled_object(cluster).await? {
        Some(object) => Some(format!("{object} has the label {USE_WAYPOINT}")),
        None => describe_istio_control_plane(cluster).await?,
    };
    if let Some(because) = because {
        overrides.set(&format!("{path}=labels"), true)?;
        report_progress(&format!(
            "{path}: labels, because {because}; --set {path}=seed lets Gateways also take their namespaces by themselves"
        ));
    }
    Ok(())
}

/// Describes Istio's control plane, if the cluster has one; in its clusters only labels attach waypoints.
async fn describe_istio_control_plane(
    cluster: &ClusterApi,
) -> Result<Option<String>, ClusterError> {
    let found: Vec<Deployment> = cluster.list_typed(None, Some("app=istiod")).await?;
    let theirs = found.iter().find(|one| !object::is_managed_by_ambit(*one));
    Ok(theirs.map(|one| {
        let name =
            ObjectRef::for_kind::<Deployment>(Some(object::namespace_of(one)), object::name(one));
        format!("Istio's control plane, {name}, attaches by labels")
    }))
}

/// Describes an object whose label names a waypoint, if there is one.
async fn find_labelled_object(cluster: &ClusterApi) -> Result<Option<String>, ClusterError> {
    for (version, kind) in LABELLED_KINDS {
        let found = cluster
            .list(version, kind, None, Some(USE_WAYPOINT))
            .await?;
        if let Some(first) = found.iter().find_map(ObjectRef::from_object) {
            return Ok(Some(first.to_string()));
        }
    }
    Ok(None)
}
