//! A directory of Kubernetes manifests as a source of objects, followed live.
//!
//! [`read_snapshot`] reads once; [`ManifestDirs`] reads and follows. Several directories are layers: an
//! object of a later one is merged over the same object of an earlier one as an RFC 7386 merge
//! patch. Unreadable parts are reported as a [`ManifestProblem`] that names file, line, object and field;
//! the last valid version of that object, and everything else, stays.
#![forbid(unsafe_code)]

mod document;
mod follow;
mod lines;
mod report;
mod scan;
mod tree;

use std::{path::Path, sync::Arc};

use ambit_k8s_api::Object;
use serde_json::Value;

pub use ambit_k8s_api::{ManifestPosition, ObjectEvent};
pub use follow::{ManifestDirs, OpenError, read_snapshot};
use report::ignored_message;
pub use report::{ManifestChange, ManifestProblem, Snapshot};

/// Objects of any kind in one file, as JSON values.
#[derive(Clone, Debug, Default)]
pub struct FileValues {
    /// Objects, with the items of lists as separate ones, each with the position of its document.
    pub objects: Vec<(Value, ManifestPosition)>,
    /// Errors of documents that could not be parsed.
    pub problems: Vec<ManifestProblem>,
}

/// Parses the text of one file to JSON values.
pub fn parse_values(file: &Path, text: &str) -> FileValues {
    let path: Arc<Path> = file.into();
    let at = |line| ManifestPosition {
        file: Arc::clone(&path),
        line,
    };
    let read = document::parse_values(text, format_of(file));
    let values = read.values.into_iter();
    let bad = read.errors.into_iter();
    FileValues {
        objects: values.map(|(line, value)| (value, at(line))).collect(),
        problems: bad
            .map(|(line, message)| ManifestProblem {
                origin: at(line),
                object: None,
                message,
            })
            .collect(),
    }
}

fn format_of(file: &Path) -> document::FileFormat {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("json") => document::FileFormat::Json,
        _ => document::FileFormat::Yaml,
    }
}

/// Parses the text of one file. Of an object that occurs twice, the last one applies.
pub fn parse(file: &Path, text: &str) -> Snapshot {
    let format = format_of(file);
    let file: Arc<Path> = file.into();
    let at = |line| ManifestPosition {
        file: Arc::clone(&file),
        line,
    };
    let parsed = document::parse_file(text, format, false, &document::KnownDocuments::new());
    let mut snapshot = Snapshot::default();
    for document in parsed.documents {
        match Object::from_value(document.key.kind, &document.value()) {
            Ok(object) => {
                let place = (object, at(document.line));
                snapshot.objects.insert(document.key, place);
            }
            Err(error) => snapshot.problems.push(ManifestProblem {
                origin: at(document.line),
                object: Some(document.key),
                message: error.to_string(),
            }),
        }
    }
    let bad = parsed
        .invalid_documents
        .into_iter()
        .map(|bad| ManifestProblem {
            origin: at(bad.line),
            object: bad.key,
            message: bad.message,
        });
    snapshot.problems.extend(bad);
    let unread = parsed
        .ignored_objects
        .into_iter()
        .map(|(line, kind)| ManifestProblem {
            origin: at(line),
            object: None,
            message: ignored_message(&kind),
        });
    snapshot.ignored_documents.extend(unread);
    snapshot
}
