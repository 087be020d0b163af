//! Sources of objects: directories of manifests, or the Kubernetes API, with a common interface.

use ambit_manifests::ManifestDirs;

use crate::{change::Change, kubernetes::Informers};

/// A source of objects.
#[derive(Debug)]
pub enum Source {
    /// Files in directories.
    Manifests(ManifestDirs),
    /// The API server.
    Kubernetes(Informers),
}

impl Source {
    /// Waits for the next change; `None` if the source has ended. Cancelling loses nothing.
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
            definitions: None,
            // The first change of manifests has every object.
            complete: true,
        }
    }
}
