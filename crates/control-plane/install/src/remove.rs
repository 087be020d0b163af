//! Uninstalls: unenrols all pods first, then removes the objects, node agents before the node
//! proxies that they depend on.

use std::time::{Duration, Instant};

use ambit_k8s_api::revisions;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    coordination::v1::Lease,
    core::v1::{ConfigMap, Namespace, Pod, Secret},
};
use serde_json::{Value, json};

use crate::{
    apply::{installed_inventory, inventory_ref},
    cluster::ClusterApi,
    error::InstallError,
    inventory::removal_order,
    object::{self, ObjectRef},
    ownership::{Ownership, ownership},
    rollout::{Rollout, rollout_of},
};

/// The label that puts pods and namespaces into the mesh.
pub const DATAPLANE_MODE_LABEL: &str = "istio.io/dataplane-mode";
/// Value of the label [`DATAPLANE_MODE_LABEL`] that enrols pods.
pub const AMBIENT_MODE: &str = "ambient";

/// Timeout for the deletion of a single object, in which agents clean up their nodes and proxies drain.
const DELETION_TIMEOUT: Duration = Duration::from_secs(600);

/// Enablement selectors that no pod matches, so that agents unenrol all pods.
const NO_POD_SELECTOR: &str =
    r#"[{"podSelector":{"matchLabels":{"ambit.io/leaving":"everybody"}}}]"#;
/// Environment variable of the agents that contains the enablement selectors.
const SELECTOR_VARIABLE: &str = "AMBIENT_ENABLEMENT_SELECTOR";
/// Annotation of pods whose traffic is redirected to the node proxy.
const REDIRECTION_ANNOTATION: &str = "ambient.istio.io/redirection";
/// Field manager under which the control plane writes the ConfigMaps of root certificates.
const CONTROL_FIELD_MANAGER: &str = "ambit-control";
/// Interval of polling for pods that are still enrolled.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// Options of an uninstallation: objects to delete besides the applied ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct UninstallOptions {
    /// Whether to delete the CRDs that the installation created, with all their objects.
    pub delete_crds: bool,
    /// Whether to delete the CA's generated root; the next installation then generates another one.
    pub delete_root: bool,
    /// Whether to delete the mesh's namespace, if the installation created it.
    pub delete_namespace: bool,
}

/// Lists namespaces whose label enrols them in the mesh.
///
/// # Errors
///
/// When namespaces cannot be listed.
pub async fn enrolled_namespaces(cluster: &ClusterApi) -> Result<Vec<String>, InstallError> {
    let label = format!("{DATAPLANE_MODE_LABEL}={AMBIENT_MODE}");
    let namespaces: Vec<Namespace> = cluster.list_typed(None, Some(&label)).await?;
    let names = namespaces.iter().map(object::name);
    Ok(names.map(ToOwned::to_owned).collect())
}

/// Sets or removes the label that enrols a namespace in the mesh.
///
/// # Errors
///
/// When the API server refuses.
pub async fn label_namespace(
    cluster: &ClusterApi,
    namespace: &str,
    enrol: bool,
) -> Result<(), InstallError> {
    let name = ObjectRef::for_kind::<Namespace>(None, namespace);
    let value = if enrol {
        json!(AMBIENT_MODE)
    } else {
        Value::Null
    };
    let patch = json!({"metadata": {"labels": {DATAPLANE_MODE_LABEL: value}}});
    Ok(cluster.merge_patch(&name, &patch).await?)
}

/// Unenrols all pods, whatever their labels: sets the agents' enablement selectors so that they
/// select no pods, whereupon the agents remove the redirection. Connections through proxies
/// continue meanwhile.
///
/// # Errors
///
/// When pods, which the error names, are not unenrolled within `timeout`, or the API server
/// refuses.
pub async fn unenrol_all(
    cluster: &ClusterApi,
    namespace: &str,
    timeout: Duration,
    report_progress: &dyn Fn(&str),
) -> Result<(), InstallError> {
    let agents = ObjectRef::for_kind::<DaemonSet>(Some(namespace), "ambit-agent");
    let config = ObjectRef::for_kind::<ConfigMap>(Some(namespace), "ambit-agent-config");
    let settings: Option<ConfigMap> = cluster.get_typed(Some(namespace), &config.name).await?;
    let (Some(settings), Some(_)) = (settings, cluster.get(&agents).await?) else {
        return Ok(());
    };
    // An interrupted unenrolment is completed, even if all pods have left the mesh meanwhile.
    let selector = settings
        .data
        .as_ref()
        .and_then(|data| data.get(SELECTOR_VARIABLE));
    let begun = selector.is_some_and(|selector| selector == NO_POD_SELECTOR);
    if !begun && captured_pods(cluster).await?.is_empty() {
        return Ok(());
    }
    let patch = json!({"data": {SELECTOR_VARIABLE: NO_POD_SELECTOR}});
    cluster.merge_patch(&config, &patch).await?;
    // Agents read their settings at start. No pod needs an agent meanwhile, so that all restart at
    // once.
    let patch = json!({"spec": {
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%", "maxSurge": 0}},
        "template": {"metadata": {"annotations": {"ambit.io/config-checksum": "leaving"}}},
    }});
    cluster.merge_patch(&agents, &patch).await?;
    let deadline = Instant::now() + timeout;
    let mut last = usize::MAX;
    loop {
        let pods = captured_pods(cluster).await?;
        let late = Instant::now() >= deadline;
        // An agent that is about to be replaced keeps its plugin installed; only agents of the new
        // template remove it when they are deleted. One that does not start must not delay the
        // others.
        if pods.is_empty() && (late || is_rolled_out(cluster, &agents).await?) {
            return Ok(());
        }
        if late {
            let lines = pods.iter().map(|pod| format!("  {pod} is still captured"));
            return Err(InstallError::NotReady(timeout, lines.collect()));
        }
        if pods.len() != last && !pods.is_empty() {
            last = pods.len();
            report_progress(&format!("waiting: {last} pods are still captured"));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn is_rolled_out(cluster: &ClusterApi, name: &ObjectRef) -> Result<bool, InstallError> {
    let state = rollout_of(cluster, name).await?;
    Ok(state.is_none_or(|state| state == Rollout::Done))
}

/// Lists pods whose traffic is redirected to the node proxy, by their annotation; ended pods are left out.
async fn captured_pods(cluster: &ClusterApi) -> Result<Vec<String>, InstallError> {
    let pods: Vec<Pod> = cluster.list_typed(None, None).await?;
    let is_captured = |pod: &&Pod| {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        object::annotation(*pod, REDIRECTION_ANNOTATION).is_some()
            && !matches!(phase, Some("Succeeded" | "Failed"))
    };
    let name = |pod| {
        let namespace = Some(object::namespace_of(pod));
        ObjectRef::for_kind::<Pod>(namespace, object::name(pod)).to_string()
    };
    Ok(pods.iter().filter(is_captured).map(name).collect())
}

/// Removes the installation. Its pods must have been unenrolled.
///
/// # Errors
///
/// When there is no installation, or the API server refuses. Another attempt continues with the
/// remaining objects.
pub async fn uninstall(
    cluster: &ClusterApi,
    (namespace, revision): (&str, &str),
    options: UninstallOptions,
    report_progress: &dyn Fn(&str),
) -> Result<(), InstallError> {
    let inventory = installed_inventory(cluster, namespace, revision).await?;
    let inventory = inventory.ok_or_else(|| InstallError::NotInstalled {
        namespace: namespace.to_owned(),
        revision: revision.to_owned(),
    })?;
    let delete = async |name: &ObjectRef| -> Result<(), InstallError> {
        if cluster.delete(name, DELETION_TIMEOUT).await? {
            report_progress(&format!("{name}: deleted"));
        }
        Ok(())
    };
    for object in removal_order(inventory.objects.clone()) {
        match ownership(cluster, &object).await? {
            Ownership::OwnedByRelease => delete(&object).await?,
            Ownership::OwnedByOther => report_progress(&format!(
                "{object}: left, it has become another installation's"
            )),
            Ownership::Missing => {}
        }
    }
    // Objects that the control plane created while it ran.
    let lease = format!("ambit-control-leader{}", revisions::name_suffix(revision));
    delete(&ObjectRef::for_kind::<Lease>(Some(namespace), &lease)).await?;
    if !inventory.has_node_components() {
        // Another revision's control plane continues to serve the mesh.
        cluster
            .delete(&inventory_ref(namespace, revision), DELETION_TIMEOUT)
            .await?;
        return Ok(());
    }
    delete(&ObjectRef::for_kind::<Lease>(
        Some(namespace),
        "ambit-mesh-leader",
    ))
    .await?;
    for copy in root_config_maps(cluster).await? {
        cluster.delete(&copy, DELETION_TIMEOUT).await?;
    }
    if options.delete_root {
        delete(&ObjectRef::for_kind::<Secret>(
            Some(namespace),
            "istio-ca-secret",
        ))
        .await?;
    } else if !(options.delete_namespace && inventory.made_namespace) {
        report_progress("the CA's root stays if it is self-signed: --root deletes it too");
    }
    if options.delete_crds {
        for crd in &inventory.crds {
            delete(crd).await?;
        }
    } else if !inventory.crds.is_empty() {
        report_progress(
            "the CRDs of Istio's kinds stay, with their objects: --crds deletes them too",
        );
    }
    cluster
        .delete(&inventory_ref(namespace, revision), DELETION_TIMEOUT)
        .await?;
    if options.delete_namespace && inventory.made_namespace {
        delete(&ObjectRef::for_kind::<Namespace>(None, namespace)).await?;
    }
    Ok(())
}

/// Lists the ConfigMaps of root certificates that Ambit's control plane wrote into the namespaces, by their field
/// manager.
async fn root_config_maps(cluster: &ClusterApi) -> Result<Vec<ObjectRef>, InstallError> {
    let all: Vec<ConfigMap> = cluster
        .list_typed(None, Some("istio.io/config=true"))
        .await?;
    let ours = |map: &&ConfigMap| {
        let mut managers = map.metadata.managed_fields.iter().flatten();
        managers.any(|entry| entry.manager.as_deref() == Some(CONTROL_FIELD_MANAGER))
    };
    let name = |map| {
        let namespace = Some(object::namespace_of(map));
        ObjectRef::for_kind::<ConfigMap>(namespace, object::name(map))
    };
    Ok(all.iter().filter(ours).map(name).collect())
}
