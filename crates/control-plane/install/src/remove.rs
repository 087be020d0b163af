//! Uninstalling: all pods are unenrolled first, then the parts go, the node agents before the node
//! proxies that they serve.

use std::time::{Duration, Instant};

use ambit_k8s_api::revisions;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    coordination::v1::Lease,
    core::v1::{ConfigMap, Namespace, Pod, Secret},
};
use serde_json::{Value, json};

use crate::{
    apply::{installed, inventory_name},
    cluster::Cluster,
    error::InstallError,
    inventory::removal_order,
    object::{self, ObjectRef},
    ownership::{Ownership, ownership},
    rollout::{Rollout, rollout_of},
};

/// The label that puts pods and namespaces into the mesh.
pub const DATAPLANE_MODE: &str = "istio.io/dataplane-mode";
/// Value of that label.
pub const AMBIENT: &str = "ambient";

/// How long deleting a single object may take: agents clean their nodes up, proxies drain.
const DELETION: Duration = Duration::from_secs(600);

/// The selectors that unenrol all pods: none has this label, whatever others it has.
const NOBODY: &str = r#"[{"podSelector":{"matchLabels":{"ambit.io/leaving":"everybody"}}}]"#;
/// Where the agents' settings have it.
const SELECTOR: &str = "AMBIENT_ENABLEMENT_SELECTOR";
/// Annotation of captured pods.
const REDIRECTION: &str = "ambient.istio.io/redirection";
/// Field manager of the root certificates in namespaces.
const CONTROL: &str = "ambit-control";
/// Time between two looks at pods that are to be unenrolled.
const PAUSE: Duration = Duration::from_millis(300);

/// Objects to remove besides those that were applied.
#[derive(Clone, Copy, Debug, Default)]
pub struct Removal {
    /// Also the definitions that the installation made, with every object of theirs.
    pub crds: bool,
    /// Also the CA's own root: the next installation has another one.
    pub root: bool,
    /// Also the namespace, if the installation made it.
    pub namespace: bool,
}

/// Namespaces whose label puts them into the mesh.
///
/// # Errors
/// When they cannot be listed.
pub async fn enrolled_namespaces(cluster: &Cluster) -> Result<Vec<String>, InstallError> {
    let label = format!("{DATAPLANE_MODE}={AMBIENT}");
    let namespaces: Vec<Namespace> = cluster.all(None, Some(&label)).await?;
    let names = namespaces.iter().map(object::name);
    Ok(names.map(ToOwned::to_owned).collect())
}

/// Removes the label that puts it into the mesh from a namespace, or sets it.
///
/// # Errors
/// When the API server refuses.
pub async fn label(cluster: &Cluster, namespace: &str, enrol: bool) -> Result<(), InstallError> {
    let name = ObjectRef::of_kind::<Namespace>(None, namespace);
    let value = if enrol { json!(AMBIENT) } else { Value::Null };
    let patch = json!({"metadata": {"labels": {DATAPLANE_MODE: value}}});
    Ok(cluster.merge(&name, &patch).await?)
}

/// Unenrols all pods, whatever their labels: the agents' settings select no pods any longer, and they remove their
/// redirection. Connections through proxies continue meanwhile.
///
/// # Errors
/// When pods are not unenrolled within `timeout`, each of them named, or the API server refuses.
pub async fn unenrol_all(
    cluster: &Cluster,
    namespace: &str,
    timeout: Duration,
    say: &dyn Fn(&str),
) -> Result<(), InstallError> {
    let agents = ObjectRef::of_kind::<DaemonSet>(Some(namespace), "ambit-agent");
    let config = ObjectRef::of_kind::<ConfigMap>(Some(namespace), "ambit-agent-config");
    let settings: Option<ConfigMap> = cluster.read(Some(namespace), &config.name).await?;
    let (Some(settings), Some(_)) = (settings, cluster.get(&agents).await?) else {
        return Ok(());
    };
    // An unenrolment that was broken off goes on to its end, though all pods may have gone meanwhile.
    let selector = settings.data.as_ref().and_then(|data| data.get(SELECTOR));
    let begun = selector.is_some_and(|selector| selector == NOBODY);
    if !begun && captured(cluster).await?.is_empty() {
        return Ok(());
    }
    let patch = json!({"data": {SELECTOR: NOBODY}});
    cluster.merge(&config, &patch).await?;
    // The agents read their settings when they start. None of them is needed meanwhile: all at once.
    let patch = json!({"spec": {
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%", "maxSurge": 0}},
        "template": {"metadata": {"annotations": {"ambit.io/config-checksum": "leaving"}}},
    }});
    cluster.merge(&agents, &patch).await?;
    let deadline = Instant::now() + timeout;
    let mut last = usize::MAX;
    loop {
        let pods = captured(cluster).await?;
        let late = Instant::now() >= deadline;
        // Agents that are about to be replaced take their plugin for still needed: only those after them
        // take it away when they are removed. One that does not come must not hold up the others.
        if pods.is_empty() && (late || is_rolled_out(cluster, &agents).await?) {
            return Ok(());
        }
        if late {
            let lines = pods.iter().map(|pod| format!("  {pod} is still captured"));
            return Err(InstallError::NotReady(timeout, lines.collect()));
        }
        if pods.len() != last && !pods.is_empty() {
            last = pods.len();
            say(&format!("waiting: {last} pods are still captured"));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn is_rolled_out(cluster: &Cluster, name: &ObjectRef) -> Result<bool, InstallError> {
    let state = rollout_of(cluster, name).await?;
    Ok(state.is_none_or(|state| state == Rollout::Done))
}

/// Pods that say they are captured, and have not ended.
async fn captured(cluster: &Cluster) -> Result<Vec<String>, InstallError> {
    let pods: Vec<Pod> = cluster.all(None, None).await?;
    let is_captured = |pod: &&Pod| {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        object::annotation(*pod, REDIRECTION).is_some()
            && !matches!(phase, Some("Succeeded" | "Failed"))
    };
    let name = |pod| {
        let namespace = Some(object::namespace_of(pod));
        ObjectRef::of_kind::<Pod>(namespace, object::name(pod)).to_string()
    };
    Ok(pods.iter().filter(is_captured).map(name).collect())
}

/// Removes the installation. Its pods must have been unenrolled.
///
/// # Errors
/// When there is none, or the API server refuses. What is gone by then stays gone; a second attempt
/// goes on from there.
pub async fn uninstall(
    cluster: &Cluster,
    (namespace, revision): (&str, &str),
    removal: Removal,
    say: &dyn Fn(&str),
) -> Result<(), InstallError> {
    let inventory = installed(cluster, namespace, revision).await?;
    let inventory = inventory.ok_or_else(|| InstallError::Absent {
        namespace: namespace.to_owned(),
        revision: revision.to_owned(),
    })?;
    let delete = async |name: &ObjectRef| -> Result<(), InstallError> {
        if cluster.delete(name, DELETION).await? {
            say(&format!("{name}: deleted"));
        }
        Ok(())
    };
    for object in removal_order(inventory.objects.clone()) {
        match ownership(cluster, &object).await? {
            Ownership::Ours => delete(&object).await?,
            Ownership::Another => say(&format!(
                "{object}: left, it has become another installation's"
            )),
            Ownership::Gone => {}
        }
    }
    // What the control plane made while it ran.
    let lease = format!("ambit-control-leader{}", revisions::suffix(revision));
    delete(&ObjectRef::of_kind::<Lease>(Some(namespace), &lease)).await?;
    if !inventory.has_node_parts() {
        // The mesh goes on with another control plane.
        cluster
            .delete(&inventory_name(namespace, revision), DELETION)
            .await?;
        return Ok(());
    }
    delete(&ObjectRef::of_kind::<Lease>(
        Some(namespace),
        "ambit-mesh-leader",
    ))
    .await?;
    for copy in root_copies(cluster).await? {
        cluster.delete(&copy, DELETION).await?;
    }
    if removal.root {
        delete(&ObjectRef::of_kind::<Secret>(
            Some(namespace),
            "istio-ca-secret",
        ))
        .await?;
    } else if !(removal.namespace && inventory.made_namespace) {
        say("the CA's root stays if it is self-signed: --root deletes it too");
    }
    if removal.crds {
        for crd in &inventory.crds {
            delete(crd).await?;
        }
    } else if !inventory.crds.is_empty() {
        say("the CRDs of Istio's kinds stay, with their objects: --crds deletes them too");
    }
    cluster
        .delete(&inventory_name(namespace, revision), DELETION)
        .await?;
    if removal.namespace && inventory.made_namespace {
        delete(&ObjectRef::of_kind::<Namespace>(None, namespace)).await?;
    }
    Ok(())
}

/// The root certificates that our control plane wrote into the namespaces; not those of another.
async fn root_copies(cluster: &Cluster) -> Result<Vec<ObjectRef>, InstallError> {
    let all: Vec<ConfigMap> = cluster.all(None, Some("istio.io/config=true")).await?;
    let ours = |map: &&ConfigMap| {
        let mut managers = map.metadata.managed_fields.iter().flatten();
        managers.any(|entry| entry.manager.as_deref() == Some(CONTROL))
    };
    let name = |map| {
        let namespace = Some(object::namespace_of(map));
        ObjectRef::of_kind::<ConfigMap>(namespace, object::name(map))
    };
    Ok(all.iter().filter(ours).map(name).collect())
}
