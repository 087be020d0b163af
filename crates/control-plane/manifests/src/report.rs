//! Results of reading manifests: objects, their changes, and problems.

use std::{collections::BTreeMap, fmt, sync::Arc};

use ambit_k8s_api::{Object, ObjectEvent, ObjectKey, Origin, unread::instead_of};

/// A part of a file that could not be read. Reported until it is corrected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// File and line.
    pub origin: Origin,
    /// The object, if known.
    pub object: Option<ObjectKey>,
    /// Text of the problem, with the field's path if there is one.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.object {
            Some(object) => write!(f, "{}: {object}: {}", self.origin, self.message),
            None => write!(f, "{}: {}", self.origin, self.message),
        }
    }
}

/// One step from a consistent state to the next.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// The changes since the last one, at most one event an object.
    pub events: Vec<ObjectEvent>,
    /// Current problems of all files.
    pub problems: Arc<[Problem]>,
}

/// Content of the directories at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The objects, all layers merged, and where each one's first layer is written.
    pub objects: BTreeMap<ObjectKey, (Object, Origin)>,
    /// Files and documents that could not be read; of directories also those of kinds without effect.
    pub problems: Vec<Problem>,
    /// Documents of a single file whose kinds have no effect.
    pub unread: Vec<Problem>,
}

/// Problem of an object of the mesh's API groups whose kind is not read; `kind` has its API version before it.
pub(crate) fn unread_message(kind: &str) -> String {
    let (version, name) = kind.split_once(' ').unwrap_or(("", kind));
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let instead = instead_of(group, name).map(|instead| format!("; {instead}"));
    format!(
        "is a {kind}, which nothing reads: it has no effect{}",
        instead.unwrap_or_default()
    )
}
