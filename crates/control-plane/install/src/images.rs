//! Reports containers of the mesh that the kubelet cannot start, each reason once. An image that cannot be pulled fails
//! the installation, which would otherwise wait in vain.

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
    cluster::{ClusterApi, ClusterError},
    error::InstallError,
    object::{self, ObjectRef},
    plan::Plan,
    rollout::{container_problems, is_in_back_off, missing_images, node_of},
};

/// Interval of checking the pods.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which an image must be unavailable before the installation fails, since a registry may fail once.
const MISSING_IMAGE_GRACE_PERIOD: Duration = Duration::from_secs(4);
/// Label selector of the mesh's own pods.
const MESH_POD_SELECTOR: &str = "app.kubernetes.io/part-of=ambit";
/// Timeout for the deletion of a pod.
const DELETION_TIMEOUT: Duration = Duration::from_secs(60);

/// Images that an installation needs, and container failures that were already reported.
#[derive(Debug)]
pub(crate) struct ImagePullChecks {
    namespace: String,
    /// Images that the plan's workloads use; other images may still be unavailable from an earlier attempt.
    needed_images: BTreeSet<String>,
    missing_since: Option<Instant>,
    next_check: Instant,
    /// Containers and reasons that were already reported.
    reported_failures: BTreeSet<(String, String)>,
}

impl ImagePullChecks {
    pub(crate) fn new(plan: &Plan) -> Self {
        let images = plan.objects.iter().filter_map(pod_spec).flat_map(|spec| {
            let images = spec.containers.into_iter();
            images.filter_map(|container| container.image)
        });
        Self {
            namespace: plan.release.namespace.clone(),
            needed_images: images.collect(),
            missing_since: None,
            next_check: Instant::now(),
            reported_failures: BTreeSet::new(),
        }
    }

    /// Deletes pods of an earlier attempt that the kubelet would retry only after a growing back-off, although the
    /// image may be available now. Pods with a running container stay.
    pub(crate) async fn delete_back_off_pods(
        &self,
        cluster: &ClusterApi,
        report_progress: &dyn Fn(&str),
    ) -> Result<(), ClusterError> {
        for pod in cluster
            .list_typed::<Pod>(Some(&self.namespace), Some(MESH_POD_SELECTOR))
            .await?
        {
            if is_in_back_off(&pod) && self.uses_needed_image(&pod) {
                let name = ObjectRef::for_kind::<Pod>(Some(&self.namespace), object::name(&pod));
                cluster.delete(&name, DELETION_TIMEOUT).await?;
                report_progress(&format!(
                    "{name} was held back by its kubelet: deleted, so that it is tried at once"
                ));
            }
        }
        Ok(())
    }

    /// Reports why containers do not start, each reason once. Fails if a needed image has been unavailable for some
    /// seconds.
    pub(crate) async fn check_pods(
        &mut self,
        cluster: &ClusterApi,
        report_progress: &dyn Fn(&str),
    ) -> Result<(), InstallError> {
        let now = Instant::now();
        if now < self.next_check {
            return Ok(());
        }
        self.next_check = now + POLL_INTERVAL;
        let pods: Vec<Pod> = cluster
            .list_typed(Some(&self.namespace), Some(MESH_POD_SELECTOR))
            .await?;
        for pod in &pods {
            for (container, reason, message) in container_problems(pod) {
                if self
                    .reported_failures
                    .insert((container.clone(), reason.clone()))
                {
                    let (name, node) = (object::name(pod), node_of(pod).unwrap_or("no node"));
                    report_progress(&format!(
                        "Pod {name} on {node}: container {container}: {reason}{message}"
                    ));
                }
            }
        }
        let missing: BTreeMap<_, _> = pods
            .iter()
            .flat_map(|pod| self.missing_images_of(pod))
            .collect();
        if missing.is_empty() {
            self.missing_since = None;
            return Ok(());
        }
        let since = *self.missing_since.get_or_insert(now);
        if now - since < MISSING_IMAGE_GRACE_PERIOD {
            return Ok(());
        }
        Err(InstallError::MissingImages(missing))
    }

    fn uses_needed_image(&self, pod: &Pod) -> bool {
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let mut images = containers.filter_map(|container| container.image.as_ref());
        images.any(|image| self.needed_images.contains(image))
    }

    fn missing_images_of(&self, pod: &Pod) -> impl Iterator<Item = (String, String)> {
        let missing = missing_images(pod).into_iter();
        missing.filter(|(image, _)| self.needed_images.contains(image))
    }
}

/// Returns the pod spec in the template of a Deployment or DaemonSet; `None` for other objects.
fn pod_spec(object: &Value) -> Option<PodSpec> {
    let template = match ObjectRef::from_object(object)?.kind.as_str() {
        "DaemonSet" => DaemonSet::deserialize(object).ok()?.spec?.template,
        "Deployment" => Deployment::deserialize(object).ok()?.spec?.template,
        _ => return None,
    };
    template.spec
}
