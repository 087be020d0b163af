//! Status of pods: the annotation on each pod, and events for failures.

use std::{collections::BTreeSet, sync::Arc};

use ambit_model::PodName;
use ambit_zds::PodUid;

mod annotations;
pub mod api;
pub mod dir;

use crate::source::{PodView, Status};
use api::ApiStatus;
use dir::{StatusDir, StatusError};

/// Destination of the pods' status.
#[derive(Clone, Debug)]
pub enum StatusSink {
    /// Annotations are not written.
    Nowhere,
    /// A directory of manifests.
    Dir(Arc<StatusDir>),
    /// The pods' objects, through the API server.
    Api(ApiStatus),
}

impl StatusSink {
    /// Writes the status of a pod, or removes it. Blocks for a directory; for the API server the write is queued, and
    /// enrolment never waits for it.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn write(&self, uid: &PodUid, pod: &PodName, status: Status) -> Result<(), StatusError> {
        match self {
            Self::Nowhere => Ok(()),
            Self::Dir(dir) => dir.write(uid, pod, status),
            Self::Api(api) => {
                api.desire(uid.clone(), pod.clone(), status);
                Ok(())
            }
        }
    }

    /// Records a pod's annotation as observed by the source.
    pub fn observed(&self, view: &PodView) {
        if let Self::Api(api) = self {
            api.observed(view.uid.clone(), view.name.clone(), view.reported);
        }
    }

    /// Handles the deletion of a pod's object.
    pub fn gone(&self, uid: &PodUid) {
        if let Self::Api(api) = self {
            api.gone(uid.clone());
        }
    }

    /// Retries writes at once, since the API server responds again.
    pub fn hasten(&self) {
        if let Self::Api(api) = self {
            api.hasten();
        }
    }

    /// Removes the statuses of all pods of the node but these.
    ///
    /// # Errors
    /// When a directory cannot be read or written.
    pub fn prune(&self, keep: &BTreeSet<PodName>) -> Result<(), StatusError> {
        match self {
            Self::Dir(dir) => dir.prune(keep),
            // The status of each pod that is out is written by itself.
            Self::Nowhere | Self::Api(_) => Ok(()),
        }
    }

    /// Reports to the pod's owner that it cannot be enrolled, and why; `None`: now it is.
    pub fn report(&self, uid: &PodUid, pod: &PodName, failure: Option<&str>) {
        if let Self::Api(api) = self {
            api.report(uid.clone(), pod.clone(), failure.map(str::to_owned));
        }
    }
}
