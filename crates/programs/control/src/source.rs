//! Where objects come from: directories of manifests, or the Kubernetes API. One shape for both.

use ambit_k8s_api::ObjectEvent;
use ambit_manifests::ManifestDirs;

use crate::kubernetes::Informers;

/// What happened since the last change.
#[derive(Debug, Default)]
pub struct Change {
    /// In order.
    pub events: Vec<ObjectEvent>,
    /// Every manifest that cannot be read now, as text; `None` if that is as before.
    pub manifests: Option<Vec<String>>,
    /// Whether all objects that existed at the start have been reported.
    pub complete: bool,
}

/// A source of objects.
#[derive(Debug)]
pub enum Source {
    /// Files.
    Manifests(ManifestDirs),
    /// The API server.
    Kubernetes(Informers),
}

impl Source {
    /// Waits for the next change; `None` if there can be none any more. Cancelling loses nothing.
    pub async fn changed(&mut self) -> Option<Change> {
        match self {
            Self::Manifests(dirs) => dirs.changed().await.map(Change::from),
            Self::Kubernetes(informers) => informers.changed().await,
        }
    }
}

impl From<ambit_manifests::Change> for Change {
    fn from(change: ambit_manifests::Change) -> Self {
        Self {
            events: change.events,
            manifests: Some(change.problems.iter().map(ToString::to_string).collect()),
            // Their first change holds every object.
            complete: true,
        }
    }
}
