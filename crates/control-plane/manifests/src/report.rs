//! Results of reading manifests: objects, their changes, and problems.

use std::{collections::BTreeMap, fmt, sync::Arc};

use ambit_k8s_api::{ManifestPosition, Object, ObjectEvent, ObjectKey, unread::replacement_for};

/// Error in a file, or in one document of it. Reported until it is corrected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManifestProblem {
    /// File and line of the problem.
    pub origin: ManifestPosition,
    /// Key of the object, if known.
    pub object: Option<ObjectKey>,
    /// Message, with the field's path if there is one.
    pub message: String,
}

impl fmt::Display for ManifestProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.object {
            Some(object) => write!(f, "{}: {object}: {}", self.origin, self.message),
            None => write!(f, "{}: {}", self.origin, self.message),
        }
    }
}

/// Changes that lead from one consistent state of the objects to the next.
#[derive(Clone, Debug, Default)]
pub struct ManifestChange {
    /// Changes since the last step, at most one per object.
    pub events: Vec<ObjectEvent>,
    /// Current problems of all files.
    pub problems: Arc<[ManifestProblem]>,
}

/// Contents of the directories at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Objects with all layers merged, and the position of each in its first layer.
    pub objects: BTreeMap<ObjectKey, (Object, ManifestPosition)>,
    /// Files and documents that could not be read; for directories also documents of kinds without
    /// effect.
    pub problems: Vec<ManifestProblem>,
    /// Documents of a single file that are ignored because of their kind.
    pub ignored_documents: Vec<ManifestProblem>,
}

/// Returns the message about an object of the mesh's API groups whose kind is not read; `kind`
/// includes its API version.
pub(crate) fn ignored_message(kind: &str) -> String {
    let (version, name) = kind.split_once(' ').unwrap_or(("", kind));
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let instead = replacement_for(group, name).map(|instead| format!("; {instead}"));
    format!(
        "is a {kind}, which nothing reads: it has no effect{}",
        instead.unwrap_or_default()
    )
}
