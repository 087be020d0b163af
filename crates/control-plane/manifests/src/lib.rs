//! A directory of Kubernetes manifests as a source of objects, followed live.
//!
//! [`read`] reads once; [`ManifestDirs`] reads and follows. Several directories are layers: an object
//! of a later one is laid over the same object of an earlier one as an RFC 7386 merge patch. What
//! cannot be read is a [`Problem`] that names file, line, object and field; the last good state of
//! that object, and everything else, stays.
#![forbid(unsafe_code)]

mod document;
mod follow;
mod lines;
mod merge;
mod scan;
mod tree;

use std::{collections::BTreeMap, fmt, path::Path, sync::Arc};

use ambit_k8s_api::{InvalidObject, Object, ObjectKey};
use serde_json::Value;

pub use follow::{ManifestDirs, OpenError, read};
pub use merge::merge_patch;

/// Where an object is written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// The file.
    pub file: Arc<Path>,
    /// First line of the document, or the line of a fault; counted from 1.
    pub line: u64,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// What happened to an object.
#[derive(Clone, Debug, PartialEq)]
pub enum ObjectEvent {
    /// It is new or changed.
    Applied {
        /// The object, all layers merged.
        object: Object,
        /// Where its first layer is written.
        origin: Origin,
    },
    /// It is there, but cannot be read, and no readable form of it is known.
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

/// Something that could not be read. It stands until it is mended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Where.
    pub origin: Origin,
    /// Which object, if that is known.
    pub object: Option<ObjectKey>,
    /// What is wrong, with the field's path where there is one.
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
    /// What happened since the last change, at most one event an object.
    pub events: Vec<ObjectEvent>,
    /// Every problem that stands now.
    pub problems: Arc<[Problem]>,
}

/// Everything in the directories at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The objects, all layers merged, and where each one's first layer is written.
    pub objects: BTreeMap<ObjectKey, (Object, Origin)>,
    /// What could not be read.
    pub problems: Vec<Problem>,
}
