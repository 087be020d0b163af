//! What kubelets report about containers of the mesh that they cannot start: each reason is named once, as soon as it is
//! reported. Images that they cannot have end an installation, which would wait for them in vain.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::{Pod, PodSpec},
};
use serde::Deserialize as _;
use serde_json::Value;

use crate::{
    cluster::{Cluster, ClusterError},
    error::InstallError,
    object::{self, ObjectRef},
    plan::Plan,
    rollout::{hindrances, is_held_back, missing_images, node_of},
};

/// Time between two looks at the pods.
const EVERY: Duration = Duration::from_secs(1);
/// How long an image has to be missing: a registry may fail once.
const MISSING: Duration = Duration::from_secs(4);
/// Label of the mesh's own pods.
const OURS: &str = "app.kubernetes.io/part-of=ambit";
/// How long deleting a pod may take.
const DELETION: Duration = Duration::from_secs(60);

/// The images of an installation.
#[derive(Debug)]
pub(crate) struct Images {
    namespace: String,
    /// Images that it needs: others may still be missing from an attempt before.
    needed: BTreeSet<String>,
    missing_since: Option<Instant>,
    next_look: Instant,
    /// Containers and reasons that were named.
    named: BTreeSet<(String, String)>,
}

impl Images {
    pub(crate) fn new(plan: &Plan) -> Self {
        let images = plan.objects.iter().filter_map(pod_spec).flat_map(|spec| {
            let images = spec.containers.into_iter();
            images.filter_map(|container| container.image)
        });
        Self {
            namespace: plan.release.namespace.clone(),
            needed: images.collect(),
            missing_since: None,
            next_look: Instant::now(),
            named: BTreeSet::new(),
        }
    }

    /// Deletes pods of an attempt before that a kubelet holds back: it tries them again ever more rarely, although what
    /// they waited for may be there. Pods with a container that runs stay.
    pub(crate) async fn try_again(
        &self,
        cluster: &Cluster,
        say: &dyn Fn(&str),
    ) -> Result<(), ClusterError> {
        for pod in cluster
            .all::<Pod>(Some(&self.namespace), Some(OURS))
            .await?
        {
            if is_held_back(&pod) && self.needs_one_of(&pod) {
                let name = ObjectRef::of_kind::<Pod>(Some(&self.namespace), object::name(&pod));
                cluster.delete(&name, DELETION).await?;
                say(&format!(
                    "{name} was held back by its kubelet: deleted, so that it is tried at once"
                ));
            }
        }
        Ok(())
    }

    /// Names new reasons for which containers do not start; an error if an image has been missing for some seconds.
    pub(crate) async fn check(
        &mut self,
        cluster: &Cluster,
        say: &dyn Fn(&str),
    ) -> Result<(), InstallError> {
        let now = Instant::now();
        if now < self.next_look {
            return Ok(());
        }
        self.next_look = now + EVERY;
        let pods: Vec<Pod> = cluster.all(Some(&self.namespace), Some(OURS)).await?;
        for pod in &pods {
            for (container, reason, message) in hindrances(pod) {
                if self.named.insert((container.clone(), reason.clone())) {
                    let (name, node) = (object::name(pod), node_of(pod).unwrap_or("no node"));
                    say(&format!(
                        "Pod {name} on {node}: container {container}: {reason}{message}"
                    ));
                }
            }
        }
        let missing: BTreeMap<_, _> = pods.iter().flat_map(|pod| self.missing_in(pod)).collect();
        if missing.is_empty() {
            self.missing_since = None;
            return Ok(());
        }
        let since = *self.missing_since.get_or_insert(now);
        if now - since < MISSING {
            return Ok(());
        }
        Err(InstallError::Images(missing))
    }

    fn needs_one_of(&self, pod: &Pod) -> bool {
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let mut images = containers.filter_map(|container| container.image.as_ref());
        images.any(|image| self.needed.contains(image))
    }

    fn missing_in(&self, pod: &Pod) -> impl Iterator<Item = (String, String)> {
        let missing = missing_images(pod).into_iter();
        missing.filter(|(image, _)| self.needed.contains(image))
    }
}

/// The pods that an object of the chart makes; none if it makes none.
fn pod_spec(object: &Value) -> Option<PodSpec> {
    let template = match ObjectRef::of(object)?.kind.as_str() {
        "DaemonSet" => DaemonSet::deserialize(object).ok()?.spec?.template,
        "Deployment" => Deployment::deserialize(object).ok()?.spec?.template,
        _ => return None,
    };
    template.spec
}
