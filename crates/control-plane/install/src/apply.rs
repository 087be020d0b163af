//! Installing and upgrading: objects in order, each wait reported, and if it is in vain, why.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::DynamicObject;

use crate::{
    cluster::Cluster,
    diagnose::why,
    error::InstallError,
    images::Images,
    inventory::{self, Inventory},
    object::{self, ObjectRef},
    ownership::{Ownership, ownership},
    plan::Plan,
    rollout::{Rollout, Workload, rollout_of},
};

/// Where the control plane puts its root certificates; node proxies start only when it is there.
const ROOT_CONFIG_MAP: &str = "istio-ca-root-cert";
/// Time between two looks at something waited for.
const PAUSE: Duration = Duration::from_millis(300);
/// How long deleting a single object may take.
const DELETION: Duration = Duration::from_secs(120);

/// How to go about it.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long to wait until everything is ready; none does not wait.
    pub wait: Option<Duration>,
    /// Take fields over that others own.
    pub force: bool,
}

/// The inventory of a revision's installation in a namespace.
///
/// # Errors
/// When it cannot be read.
pub async fn installed(
    cluster: &Cluster,
    namespace: &str,
    revision: &str,
) -> Result<Option<Inventory>, InstallError> {
    let name = inventory::name(revision);
    let map: Option<ConfigMap> = cluster.read(Some(namespace), &name).await?;
    Ok(map.map(|map| Inventory::read(&map)).transpose()?)
}

pub(crate) fn inventory_name(namespace: &str, revision: &str) -> ObjectRef {
    ObjectRef::of_kind::<ConfigMap>(Some(namespace), &inventory::name(revision))
}

/// Applies the plan to the cluster: installs, or upgrades an installation. `say` gets each step.
///
/// # Errors
/// When an object cannot be applied, or not everything is ready in time. What was applied by then
/// stays, and is known: a second attempt goes on from there, an uninstallation takes it away.
pub async fn install(
    cluster: &Cluster,
    plan: &Plan,
    options: Options,
    say: &dyn Fn(&str),
) -> Result<(), InstallError> {
    let namespace = plan.release.namespace.as_str();
    let deadline = options.wait.map(|wait| (Instant::now() + wait, wait));
    let revision = plan.overrides.revision();
    let before = installed(cluster, namespace, revision).await?;
    if before.is_none() && !options.force {
        nobody_elses(cluster, plan).await?;
    }
    let made_namespace = match &before {
        Some(before) => before.made_namespace,
        None => match ObjectRef::of(&plan.namespace()) {
            Some(name) => cluster.get(&name).await?.is_none(),
            None => false,
        },
    };
    cluster.apply(&plan.namespace(), options.force).await?;
    say(&format!("namespace {namespace}"));
    let crds = apply_crds(cluster, plan, before.as_ref(), say).await?;

    let names = plan.names();
    let next = Inventory {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        values: plan.overrides.clone().into_value(),
        revision: revision.to_owned(),
        made_namespace,
        crds,
        objects: names.clone(),
    };
    let between = Inventory {
        objects: before.clone().unwrap_or_default().with(&names).objects,
        ..next.clone()
    };
    // The inventory has no other manager.
    cluster.apply(&between.config_map(namespace), true).await?;

    let mut images = Images::new(plan);
    if deadline.is_some() {
        images.try_again(cluster, say).await?;
    }
    for object in &plan.objects {
        if object::kind(object) == "DaemonSet"
            && let Some(deadline) = deadline
        {
            wait_for_root(cluster, plan, deadline, &mut images, say).await?;
        }
        let applied = cluster.apply(object, options.force).await?;
        if let Some(name) = ObjectRef::of(&applied) {
            say(&name.to_string());
        }
    }
    for gone in before.iter().flat_map(|before| before.pruned(&names)) {
        let is_ours = ownership(cluster, &gone).await? == Ownership::Ours;
        if is_ours && cluster.delete(&gone, DELETION).await? {
            say(&format!("{gone} is no longer wanted: deleted"));
        }
    }
    cluster.apply(&next.config_map(namespace), true).await?;
    match deadline {
        Some(deadline) => wait_until_ready(cluster, &names, deadline, &mut images, say).await,
        None => Ok(()),
    }
}

/// A first installation finds none of its objects there: neither Helm's nor those of another mesh.
async fn nobody_elses(cluster: &Cluster, plan: &Plan) -> Result<(), InstallError> {
    for name in plan.names() {
        let Some(there) = cluster.get(&name).await? else {
            continue;
        };
        let there = serde_json::from_value::<DynamicObject>(there).ok();
        let by = there
            .as_ref()
            .and_then(|there| object::label(there, "app.kubernetes.io/managed-by"));
        match by {
            // Ours, of an installation whose inventory is lost.
            Some("ambit") => {}
            Some(other) => {
                let whose =
                    format!("managed by {other}, by which it should be upgraded or removed");
                return Err(InstallError::Foreign(name, whose));
            }
            None => return Err(InstallError::Foreign(name, "made by another".to_owned())),
        }
    }
    Ok(())
}

/// Definitions that others brought stay as they are: Istio's own are as good.
async fn apply_crds(
    cluster: &Cluster,
    plan: &Plan,
    before: Option<&Inventory>,
    say: &dyn Fn(&str),
) -> Result<Vec<ObjectRef>, InstallError> {
    let mut ours = Vec::new();
    for crd in &plan.crds {
        let Some(name) = ObjectRef::of(crd) else {
            continue;
        };
        let known = before.is_some_and(|before| before.crds.contains(&name));
        if !known && cluster.get(&name).await?.is_some() {
            say(&format!("{name}: there already, left as it is"));
            continue;
        }
        cluster.apply(crd, known).await?;
        say(&name.to_string());
        ours.push(name);
    }
    Ok(ours)
}

/// A node proxy whose root certificates are not there yet would be tried again ever more rarely.
async fn wait_for_root(
    cluster: &Cluster,
    plan: &Plan,
    deadline: (Instant, Duration),
    images: &mut Images,
    say: &dyn Fn(&str),
) -> Result<(), InstallError> {
    let namespace = Some(plan.release.namespace.as_str());
    let name = ObjectRef::of_kind::<ConfigMap>(namespace, ROOT_CONFIG_MAP);
    let mut is_reported = false;
    while cluster.get(&name).await?.is_none() {
        if !is_reported {
            say("waiting for the control plane to publish its root certificate");
            is_reported = true;
        }
        if Instant::now() >= deadline.0 {
            let mut reasons = vec![format!("the control plane has not made the {name}")];
            for control in plan.names().iter().filter(|name| name.kind == "Deployment") {
                reasons.extend(why(cluster, control).await);
            }
            return Err(InstallError::NotReady(deadline.1, reasons));
        }
        images.check(cluster, say).await?;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

async fn wait_until_ready(
    cluster: &Cluster,
    names: &[ObjectRef],
    deadline: (Instant, Duration),
    images: &mut Images,
    say: &dyn Fn(&str),
) -> Result<(), InstallError> {
    let mut last = String::new();
    loop {
        let mut waiting = Vec::new();
        for name in names {
            if !Workload::is_kind(&name.kind) {
                continue;
            }
            let state = rollout_of(cluster, name).await?;
            let state = state.unwrap_or_else(|| Rollout::Waiting("it is gone".to_owned()));
            if let Rollout::Waiting(what) = state {
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
                reasons.extend(why(cluster, name).await);
            }
            return Err(InstallError::NotReady(deadline.1, reasons));
        }
        if line != last {
            say(&format!("waiting: {line}"));
            last = line;
        }
        images.check(cluster, say).await?;
        tokio::time::sleep(PAUSE).await;
    }
}
