//! Events of objects, in the form that all sources (API server, manifests) share.

use std::{fmt, path::Path, sync::Arc};

use serde_json::Value;

use crate::{InvalidObject, Object, ObjectKey};

/// Position of an object in a manifest file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManifestPosition {
    /// Path of the file.
    pub file: Arc<Path>,
    /// First line of the document, or the line of the error; counted from 1.
    pub line: u64,
}

impl fmt::Display for ManifestPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// Event of an object: added, changed, or deleted.
#[derive(Clone, Debug, PartialEq)]
pub enum ObjectEvent {
    /// Added or changed object.
    Applied {
        /// Current state of the object.
        object: Object,
        /// File position of the object, if it is from a file.
        origin: Option<ManifestPosition>,
    },
    /// Existing object that cannot be parsed, and of which the source has no earlier valid version.
    Invalid {
        /// Key of the object.
        key: ObjectKey,
        /// Parse error, which names the invalid field.
        error: InvalidObject,
        /// Complete object as JSON.
        value: Box<Value>,
    },
    /// Deletion of an object.
    Deleted(ObjectKey),
}
