//! Installs and upgrades: applies objects in order, waits until each workload is ready, and reports progress and the
//! reasons of failures.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::DynamicObject;

use crate::{
    cluster::ClusterApi,
    diagnose::explain_not_ready,
    error::InstallError,
    images::ImagePullChecks,
    inventory::{self, Inventory},
    object::{self, ObjectRef},
    ownership::{Ownership, ownership},
    plan::Plan,
    rollout::{Rollout, Workload, rollout_of},
};

/// ConfigMap in which the control plane publishes its root certificates; node proxies start only
/// when it exists.
const ROOT_CONFIG_MAP: &str = "istio-ca-root-cert";
/// Interval of polling for the root certificates, workloads and deletions.
const POLL_INTERVAL: Duration = Duration::from_millis(300);
/// Timeout for the deletion of a single object.
const DELETION_TIMEOUT: Duration = Duration::from_secs(120);

/// Options of an installation or upgrade.
#[derive(Clone, Copy, Debug)]
pub struct InstallOptions {
    /// Maximum time to wait until all workloads are ready; `None` does not wait.
    pub ready_timeout: Option<Duration>,
    /// Whether to take over fields that other field managers own.
    pub force_conflicts: bool,
}

/// Returns the inventory of a revision's installation in a namespace, if there is one.
///
/// # Errors
///
/// When the inventory cannot be read.
pub async fn installed_inventory(
    cluster: &ClusterApi,
    namespace: &str,
    revision: &str,
) -> Result<Option<Inventory>, InstallError> {
    let name = inventory::config_map_name(revision);
    let map: Option<ConfigMap> = cluster.get_typed(Some(namespace), &name).await?;
    Ok(map.map(|map| Inventory::read(&map)).transpose()?)
}

pub(crate) fn inventory_ref(namespace: &str, revision: &str) -> ObjectRef {
    ObjectRef::for_kind::<ConfigMap>(Some(namespace), &inventory::config_map_name(revision))
}

/// Installs the plan, or upgrades an existing installation, and reports each step.
///
/// # Errors
///
/// When an object cannot be applied, or not everything is ready in time. The inventory lists the
/// objects that were applied by then: another attempt continues from there, an uninstallation
/// removes them.
pub async fn install(
    cluster: &ClusterApi,
    plan: &Plan,
    options: InstallOptions,
    report_progress: &dyn Fn(&str),
) -> Result<(), InstallError> {
    let namespace = plan.release.namespace.as_str();
    let deadline = options
        .ready_timeout
        .map(|wait| (Instant::now() + wait, wait));
    let revision = plan.overrides.revision();
    let before = installed_inventory(cluster, namespace, revision).await?;
    if before.is_none() && !options.force_conflicts {
        reject_foreign_objects(cluster, plan).await?;
    }
    let made_namespace = match &before {
        Some(before) => before.made_namespace,
        None => match ObjectRef::from_object(&plan.namespace()) {
            Some(name) => cluster.get(&name).await?.is_none(),
            None => false,
        },
    };
    cluster
        .apply(&plan.namespace(), options.force_conflicts)
        .await?;
    report_progress(&format!("namespace {namespace}"));
    let crds = apply_crds(cluster, plan, before.as_ref(), report_progress).await?;

    let names = plan.object_refs();
    let next = Inventory {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        values: plan.overrides.clone().into_value(),
        revision: revision.to_owned(),
        made_namespace,
        crds,
        objects: names.clone(),
    };
    let between = Inventory {
        objects: before
            .clone()
            .unwrap_or_default()
            .with_objects(&names)
            .objects,
        ..next.clone()
    };
    // No other field manager writes the inventory.
    cluster.apply(&between.config_map(namespace), true).await?;

    let mut images = ImagePullChecks::new(plan);
    if deadline.is_some() {
        images
            .delete_back_off_pods(cluster, report_progress)
            .await?;
    }
    for object in &plan.objects {
        if object::kind(object) == "DaemonSet"
            && let Some(deadline) = deadline
        {
            wait_for_root(cluster, plan, deadline, &mut images, report_progress).await?;
        }
        let applied = cluster.apply(object, options.force_conflicts).await?;
        if let Some(name) = ObjectRef::from_object(&applied) {
            report_progress(&name.to_string());
        }
    }
    for gone in before
        .iter()
        .flat_map(|before| before.objects_to_prune(&names))
    {
        let is_ours = ownership(cluster, &gone).await? == Ownership::OwnedByRelease;
        if is_ours && cluster.delete(&gone, DELETION_TIMEOUT).await? {
            report_progress(&format!("{gone} is no longer wanted: deleted"));
        }
    }
    cluster.apply(&next.config_map(namespace), true).await?;
    match deadline {
        Some(deadline) => {
            wait_until_ready(cluster, &names, deadline, &mut images, report_progress).await
        }
        None => Ok(()),
    }
}

/// Fails if a first installation would overwrite objects that Helm or another mesh has created.
async fn reject_foreign_objects(cluster: &ClusterApi, plan: &Plan) -> Result<(), InstallError> {
    for name in plan.object_refs() {
        let Some(existing) = cluster.get(&name).await? else {
            continue;
        };
        let existing = serde_json::from_value::<DynamicObject>(existing).ok();
        let by = existing
            .as_ref()
            .and_then(|existing| object::label(existing, "app.kubernetes.io/managed-by"));
        match by {
            // The object is from an Ambit installation whose inventory is lost.
            Some("ambit") => {}
            Some(other) => {
                let whose =
                    format!("managed by {other}, by which it should be upgraded or removed");
                return Err(InstallError::ForeignObject(name, whose));
            }
            None => {
                return Err(InstallError::ForeignObject(
                    name,
                    "made by another".to_owned(),
                ));
            }
        }
    }
    Ok(())
}

/// Applies the CRDs. CRDs that another owner installed, such as Istio, are compatible and not changed.
async fn apply_crds(
    cluster: &ClusterApi,
    plan: &Plan,
    previous: Option<&Inventory>,
    report_progress: &dyn Fn(&str),
) -> Result<Vec<ObjectRef>, InstallError> {
    let mut ours = Vec::new();
    for crd in &plan.crds {
        let Some(name) = ObjectRef::from_object(crd) else {
            continue;
        };
        let known = previous.is_some_and(|before| before.crds.contains(&name));
        if !known && cluster.get(&name).await?.is_some() {
            report_progress(&format!("{name}: there already, left as it is"));
            continue;
        }
        cluster.apply(crd, known).await?;
        report_progress(&name.to_string());
        ours.push(name);
    }
    Ok(ours)
}

/// Waits for the ConfigMap of root certificates. Node proxies that start without it fail, and the kubelet would retry
/// them with growing delays.
async fn wait_for_root(
    cluster: &ClusterApi,
    plan: &Plan,
    deadline: (Instant, Duration),
    images: &mut ImagePullChecks,
    report_progress: &dyn Fn(&str),
) -> Result<(), InstallError> {
    let namespace = Some(plan.release.namespace.as_str());
    let name = ObjectRef::for_kind::<ConfigMap>(namespace, ROOT_CONFIG_MAP);
    let mut is_reported = false;
    while cluster.get(&name).await?.is_none() {
        if !is_reported {
            report_progress("waiting for the control plane to publish its root certificate");
            is_reported = true;
        }
        if Instant::now() >= deadline.0 {
            let mut reasons = vec![format!("the control plane has not made the {name}")];
            for control in plan
                .object_refs()
                .iter()
                .filter(|name| name.kind == "Deployment")
            {
                reasons.extend(explain_not_ready(cluster, control).await);
            }
            return Err(InstallError::NotReady(deadline.1, reasons));
        }
        images.check_pods(cluster, report_progress).await?;
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

async fn wait_until_ready(
    cluster: &ClusterApi,
    names: &[ObjectRef],
    deadline: (Instant, Duration),
    images: &mut ImagePullChecks,
    report_progress: &dyn Fn(&str),
) -> Result<(), InstallError> {
    let mut last = String::new();
    loop {
        let mut waiting = Vec::new();
        for name in names {
            if !Workload::is_workload_kind(&name.kind) {
                continue;
            }
            let state = rollout_of(cluster, name).await?;
            let state = state.unwrap_or_else(|| Rollout::InProgress("it is gone".to_owned()));
            if let Rollout::InProgress(what) = state {
                waiting.push((name, what));
            }
        }
        if waiting.is_empty() {
            return Ok(());
        }
        let line: Vec<_> = waiting
            .iter()
            .map(|(name, what)| format!("{name}: {what}"))
            .collect();
        let line = line.join("; ");
        if Instant::now() >= deadline.0 {
            let mut reasons = Vec::new();
            for (name, what) in waiting {
                reasons.push(format!("{name}: {what}"));
                reasons.extend(explain_not_ready(cluster, name).await);
            }
            return Err(InstallError::NotReady(deadline.1, reasons));
        }
        if line != last {
            report_progress(&format!("waiting: {line}"));
            last = line;
        }
        images.check_pods(cluster, report_progress).await?;
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
