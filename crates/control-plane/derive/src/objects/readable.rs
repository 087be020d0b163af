//! Traits of the kinds of objects: which objects the control plane fetches, and the parsed form that it stores of each.

use std::fmt;

use ambit_k8s_api::{ObjectMeta, ObjectType};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    config::MeshConfig,
    problem::{FieldError, Note},
};

/// Extent to which the control plane fetches objects of a kind from the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchExtent {
    /// Objects of the kind are not fetched.
    Nothing,
    /// The control plane fetches only whether objects of the kind exist. Startup does not wait for their list, and no
    /// record depends on it.
    ExistenceOnly,
    /// The control plane fetches only the metadata of objects: labels and annotations.
    MetadataOnly,
    /// The control plane fetches all fields that [`FetchedKind::without_unused_fields`] keeps.
    Whole {
        /// Label selector of the objects to fetch; all objects if `None`.
        labels: Option<&'static str>,
    },
}

/// Kind of object that the control plane fetches.
pub trait FetchedKind: ObjectType {
    /// Extent to which objects of the kind are fetched.
    const FETCH_EXTENT: FetchExtent;

    /// Drops the fields that the mesh does not read, so that tens of thousands of objects need little memory while they
    /// are fetched. The source that fetches objects trims their metadata itself.
    #[must_use]
    fn without_unused_fields(self) -> Self {
        self
    }
}

/// Result of parsing an object: its parsed form, and notes.
#[derive(Debug)]
pub(crate) struct Parsed<I> {
    /// Parsed object; `None` if the mesh ignores the object.
    pub(crate) input: Option<I>,
    /// Notes on fields that have no effect or another effect than expected; the object's status reports them.
    pub(crate) notes: Vec<Note>,
}

impl<I> Parsed<I> {
    /// Returns a parsed object without notes.
    pub(crate) fn without_notes(input: I) -> Self {
        Self::new(Some(input), Vec::new())
    }

    pub(crate) fn new(input: Option<I>, notes: Vec<Note>) -> Self {
        Self { input, notes }
    }
}

/// Kind of object that the control plane parses and stores.
pub(crate) trait Readable: FetchedKind {
    /// Parsed form of an object, the only form that the control plane keeps in memory.
    type Input: Clone + fmt::Debug + PartialEq;

    /// Parses an object. An invalid object is rejected as a whole.
    fn read(&self, config: &MeshConfig) -> Result<Parsed<Self::Input>, FieldError>;

    /// Returns the parsed form that replaces an invalid object without a last usable version, because it was created
    /// invalid or this process has never read a valid version. For a policy, the substitute refuses everything in the
    /// policy's scope.
    fn substitute(&self, _config: &MeshConfig) -> Option<Self::Input> {
        None
    }

    /// Returns an object with the readable fields of one that cannot be deserialized as a whole, for
    /// [`Readable::substitute`].
    fn readable_part(_metadata: ObjectMeta, _spec: Option<&Value>) -> Option<Self> {
        None
    }

    /// Copies parts of an object's last version to the new one where the new version of them is invalid.
    fn inherit_if_unreadable(_new: &mut Self::Input, _old: &Self::Input) {}

    /// Whether the object has `targetRefs`, so that waypoints enforce it.
    fn is_attached(&self) -> bool {
        false
    }
}

/// Returns a field of an object's spec, if it is present and can be deserialized.
pub(crate) fn deserialize_field<T: DeserializeOwned>(of: Option<&Value>, name: &str) -> Option<T> {
    of?.get(name).and_then(|value| T::deserialize(value).ok())
}
