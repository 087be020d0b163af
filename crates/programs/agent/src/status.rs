//! Writes the status of pods: an annotation on each pod, and Kubernetes events about failures.

use std::{collections::BTreeSet, sync::Arc};

use ambit_model::PodName;
use ambit_zds::PodUid;

mod annotations;
pub mod api;
pub mod dir;

use crate::source::{PodView, RedirectionStatus};
use api::ApiStatus;
use dir::{StatusDir, StatusError};

/// Destination of the pods' status annotations and events.
#[derive(Clone, Debug)]
pub enum StatusSink {
    /// Neither annotations nor events are written.
    Disabled,
    /// Annotations are written to a directory of manifests.
    Dir(Arc<StatusDir>),
    /// Annotations and events are written to the API server.
    Api(ApiStatus),
}

impl StatusSink {
    /// Writes or removes a pod's status annotation. Blocks for a directory; for the API server the write is queued, and
    /// enrolment never waits for it.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn write_annotation(
        &self,
        uid: &PodUid,
        pod: &PodName,
        status: RedirectionStatus,
    ) -> Result<(), StatusError> {
        match self {
            Self::Disabled => Ok(()),
            Self::Dir(dir) => dir.write(uid, pod, status),
            Self::Api(api) => {
                api.set_desired(uid.clone(), pod.clone(), status);
                Ok(())
            }
        }
    }

    /// Records the value of a pod's status annotation as the source has sent it.
    pub fn on_observed(&self, view: &PodView) {
        if let Self::Api(api) = self {
            api.set_observed(view.uid.clone(), view.name.clone(), view.reported);
        }
    }

    /// Forgets a pod whose object was deleted.
    pub fn on_deleted(&self, uid: &PodUid) {
        if let Self::Api(api) = self {
            api.remove_pod(uid.clone());
        }
    }

    /// Retries failed writes at once, since the API server responds again.
    pub fn retry_now(&self) {
        if let Self::Api(api) = self {
            api.retry_now();
        }
    }

    /// Removes the status annotations of this node's pods, except for the pods in `keep`.
    ///
    /// # Errors
    /// When a directory cannot be read or written.
    pub fn prune_annotations(&self, keep: &BTreeSet<PodName>) -> Result<(), StatusError> {
        match self {
            Self::Dir(dir) => dir.prune(keep),
            // The status of each pod that is out is written by itself.
            Self::Disabled | Self::Api(_) => Ok(()),
        }
    }

    /// Reports to the pod's owner, by a Kubernetes event, why the pod cannot be enrolled; `None` reports that it is
    /// enrolled now.
    pub fn report_failure(&self, uid: &PodUid, pod: &PodName, failure: Option<&str>) {
        if let Self::Api(api) = self {
            api.report(uid.clone(), pod.clone(), failure.map(str::to_owned));
        }
    }
}
