//! Sources of Kubernetes objects with a common interface: directories of manifests, or the API server.

use ambit_manifests::ManifestDirs;

use crate::{change::Change, kubernetes::Informers};

/// Source of Kubernetes objects.
#[derive(Debug)]
pub enum Source {
    /// Directories of manifests.
    Manifests(ManifestDirs),
    /// Watches of the API server.
    Kubernetes(Informers),
}

impl Source {
    /// Waits for the next change; `None` if the source has ended. Cancelling the future loses no change.
    pub async fn next_change(&mut self) -> Option<Change> {
        match self {
            Self::Manifests(dirs) => dirs.next_change().await.map(Change::from),
            Self::Kubernetes(informers) => informers.next_change().await,
        }
    }
}

impl From<ambit_manifests::ManifestChange> for Change {
    fn from(change: ambit_manifests::ManifestChange) -> Self {
        Self {
            events: change.events,
            manifest_problems: Some(change.problems.iter().map(ToString::to_string).collect()),
            crd_problems: None,
            // The first change of manifests has every object.
            is_complete: true,
        }
    }
}
