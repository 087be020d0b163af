//! What happens to objects, whichever source says so: the one form from there to who reads it.

use std::{fmt, path::Path, sync::Arc};

use serde_json::Value;

use crate::{InvalidObject, Object, ObjectKey};

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
    /// It is there, or is as it is now.
    Applied {
        /// The object.
        object: Object,
        /// Where it is written, if in a file.
        origin: Option<Origin>,
    },
    /// It is there, but cannot be read, and no readable form of it is known to the source.
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
