//! Where objects come from: directories of manifests, or the Kubernetes API. One shape for both.

use ambit_k8s_api::{InvalidObject, Object, ObjectKey};
use ambit_manifests::{ManifestDirs, ObjectEvent};
use serde_json::Value;

use crate::kubernetes::Informers;

/// What happened to one object.
#[derive(Clone, Debug)]
pub enum Event {
    /// It is there, or is as it is now.
    Applied {
        /// The object.
        object: Object,
        /// File and line, where it is written in a file.
        origin: Option<String>,
    },
    /// It is there, but cannot be read.
    Refused {
        /// Which.
        key: ObjectKey,
        /// Why.
        error: InvalidObject,
        /// All of it.
        value: Box<Value>,
    },
    /// It is gone.
    Deleted(ObjectKey),
}

/// What happened since the last change.
#[derive(Debug, Default)]
pub struct Change {
    /// In order.
    pub events: Vec<Event>,
    /// Every manifest that cannot be read now, as text; `None` if that is as before.
    pub manifests: Option<Vec<String>>,
    /// Whether all objects that existed at the start have been told.
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
        let event = |event: ObjectEvent| match event {
            ObjectEvent::Applied { object, origin } => Event::Applied {
                object,
                origin: Some(origin.to_string()),
            },
            ObjectEvent::Refused { key, error, value } => Event::Refused { key, error, value },
            ObjectEvent::Deleted(key) => Event::Deleted(key),
        };
        Self {
            events: change.events.into_iter().map(event).collect(),
            manifests: Some(change.problems.iter().map(ToString::to_string).collect()),
            // Their first change holds every object.
            complete: true,
        }
    }
}
