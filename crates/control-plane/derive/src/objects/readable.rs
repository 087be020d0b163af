//! Traits of the kinds of objects: which of them are fetched, and what is stored of each.

use std::fmt;

use ambit_k8s_api::{ObjectMeta, ObjectType};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    config::MeshConfig,
    problem::{FieldError, Note},
};

/// Extent in which the control plane follows a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// No object is followed.
    Nothing,
    /// Existence of objects alone. Nothing waits for the list of them, and nothing depends on it.
    Presence,
    /// Labels and annotations of all objects.
    Metadata,
    /// All fields that [`Followed::cut`] leaves.
    Whole {
        /// Selector of the objects; all if `None`.
        labels: Option<&'static str>,
    },
}

/// Kind of object that the control plane fetches.
pub trait Followed: ObjectType {
    /// Extent in which the kind is followed.
    const EXTENT: Extent;

    /// Drops the fields that the mesh does not read, so that tens of thousands of objects need little memory while they
    /// are fetched. The fetching source cuts the metadata.
    #[must_use]
    fn cut(self) -> Self {
        self
    }
}

/// Result of reading an object.
#[derive(Debug)]
pub(crate) struct Read<I> {
    /// `None`: the mesh ignores the object.
    pub(crate) input: Option<I>,
    /// Notes on parts that have not the effect one might expect.
    pub(crate) notes: Vec<Note>,
}

impl<I> Read<I> {
    /// Returns an input without notes.
    pub(crate) fn plain(input: I) -> Self {
        Self::of(Some(input), Vec::new())
    }

    pub(crate) fn of(input: Option<I>, notes: Vec<Note>) -> Self {
        Self { input, notes }
    }
}

/// Kind of object of which the mesh stores an input.
pub(crate) trait Readable: Followed {
    /// Input that is stored of an object: all that the mesh keeps of it.
    type Input: Clone + fmt::Debug + PartialEq;

    /// Reads an object. One that cannot be used as it is written is refused as a whole.
    fn read(&self, config: &MeshConfig) -> Result<Read<Self::Input>, FieldError>;

    /// Returns the input for an object that cannot be used and of which no usable form is known, because it was written
    /// like that or because it was usable before this process began. Of a policy this is the refusal of everything in
    /// its scope.
    fn substitute(&self, _config: &MeshConfig) -> Option<Self::Input> {
        None
    }

    /// Returns the readable part of an object that cannot be read as a whole, for [`Readable::substitute`].
    fn readable_part(_metadata: ObjectMeta, _spec: Option<&Value>) -> Option<Self> {
        None
    }

    /// Puts parts of an object's last form in the place of those of a new form that cannot be used.
    fn inherit(_new: &mut Self::Input, _old: &Self::Input) {}

    /// Whether an object is attached to others, of which waypoints take care.
    fn is_attached(&self) -> bool {
        false
    }
}

/// Returns a field, if it is there and can be read.
pub(crate) fn field<T: DeserializeOwned>(of: Option<&Value>, name: &str) -> Option<T> {
    of?.get(name).and_then(|value| T::deserialize(value).ok())
}
