//! Contents of all files, merged into objects. Does no IO: takes parsed files, and returns changes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
    sync::Arc,
};

use ambit_k8s_api::{Object, ObjectKey};
use serde_json::Value;

use crate::{
    ManifestChange, ManifestPosition, ManifestProblem, ObjectEvent, Snapshot,
    document::{Document, KnownDocuments, ParsedFile, RejectedObject},
};

/// File of one of the layers. Ordered by layers, lower ones first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FileId {
    pub(crate) layer: usize,
    pub(crate) path: Arc<Path>,
}

#[derive(Debug, Default)]
struct FileState {
    documents: HashMap<ObjectKey, Document>,
    /// Invalid objects without an earlier valid version in the file.
    rejected: HashMap<ObjectKey, RejectedObject>,
    problems: Vec<ManifestProblem>,
}

/// Objects of all layers, and their merged result.
#[derive(Debug, Default)]
pub(crate) struct ManifestTree {
    files: BTreeMap<FileId, FileState>,
    /// Files that have documents of an object.
    files_by_object: HashMap<ObjectKey, BTreeSet<FileId>>,
    /// Hash of the merged JSON of every object that was reported to the reader.
    reported_hashes: HashMap<ObjectKey, u64>,
    object_problems: BTreeMap<ObjectKey, ManifestProblem>,
    /// Problems with reading files and directories.
    path_problems: BTreeMap<FileId, ManifestProblem>,
    changed_objects: HashSet<ObjectKey>,
    problems_changed: bool,
}

impl ManifestTree {
    /// Replaces the documents of a file by newly parsed ones. Objects whose documents are now invalid keep their
    /// earlier version.
    pub(crate) fn set_file(&mut self, id: &FileId, parsed: ParsedFile) {
        let origin = |line| ManifestPosition {
            file: Arc::clone(&id.path),
            line,
        };
        let mut old = self.files.remove(id).unwrap_or_default();
        let mut new = FileState::default();
        for document in parsed.documents {
            if let Some(first) = new.documents.get(&document.key) {
                if first.json != document.json {
                    new.problems.push(ManifestProblem {
                        origin: origin(document.line),
                        message: format!(
                            "is given a second time, differently; line {} of the same file is used",
                            first.line
                        ),
                        object: Some(document.key),
                    });
                }
                continue;
            }
            new.documents.insert(document.key.clone(), document);
        }
        let mut keep_all = false;
        for bad in parsed.invalid_documents {
            match &bad.key {
                Some(key) if !new.documents.contains_key(key) => {
                    match (old.documents.remove_entry(key), bad.rejected_object) {
                        (Some((key, document)), _) => {
                            new.documents.insert(key, document);
                        }
                        (None, Some(refused)) => {
                            new.rejected.insert(key.clone(), refused);
                        }
                        (None, None) => {}
                    }
                }
                Some(_) => {}
                None => keep_all = true,
            }
            new.problems.push(ManifestProblem {
                origin: origin(bad.line),
                object: bad.key,
                message: bad.message,
            });
        }
        for (line, kind) in parsed.ignored_objects {
            new.problems.push(ManifestProblem {
                origin: origin(line),
                object: None,
                message: crate::ignored_message(&kind),
            });
        }
        if keep_all {
            // The object of the invalid document is unknown, so that no earlier object of the file
            // is removed.
            for (key, document) in std::mem::take(&mut old.documents) {
                new.documents.entry(key).or_insert(document);
            }
            for (key, refused) in std::mem::take(&mut old.rejected) {
                if !new.documents.contains_key(&key) {
                    new.rejected.entry(key).or_insert(refused);
                }
            }
        }
        self.problems_changed |= new.problems != old.problems;
        self.replace_file_state(id, old, new);
    }

    /// Removes a file with its documents and problems.
    pub(crate) fn remove_file(&mut self, id: &FileId) {
        let old = self.files.remove(id).unwrap_or_default();
        self.problems_changed |= !old.problems.is_empty();
        self.problems_changed |= self.path_problems.remove(id).is_some();
        self.replace_file_state(id, old, FileState::default());
        self.files.remove(id);
    }

    /// Records that a file or directory cannot be read; its earlier contents stay in force.
    pub(crate) fn set_unreadable(&mut self, id: &FileId, message: String) {
        let origin = ManifestPosition {
            file: Arc::clone(&id.path),
            line: 1,
        };
        let problem = ManifestProblem {
            origin,
            object: None,
            message,
        };
        if self.path_problems.get(id) != Some(&problem) {
            self.path_problems.insert(id.clone(), problem);
            self.problems_changed = true;
        }
    }

    /// Records that a file or directory can be read again.
    pub(crate) fn clear_unreadable(&mut self, id: &FileId) {
        self.problems_changed |= self.path_problems.remove(id).is_some();
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = &FileId> {
        self.files.keys()
    }

    /// Returns whether the file currently has any object.
    pub(crate) fn holds_objects(&self, id: &FileId) -> bool {
        self.files
            .get(id)
            .is_some_and(|file| !file.documents.is_empty())
    }

    /// Returns the changes since the last call; `None` without any.
    pub(crate) fn take_change(&mut self) -> Option<ManifestChange> {
        let touched: BTreeSet<_> = std::mem::take(&mut self.changed_objects)
            .into_iter()
            .collect();
        let events: Vec<_> = touched
            .into_iter()
            .filter_map(|key| self.merge_object(key))
            .collect();
        if events.is_empty() && !std::mem::take(&mut self.problems_changed) {
            return None;
        }
        self.problems_changed = false;
        Some(ManifestChange {
            events,
            problems: self.problems().into(),
        })
    }

    /// Returns all merged objects and problems.
    pub(crate) fn snapshot(&mut self) -> Snapshot {
        self.take_change();
        let object = |key: &ObjectKey| {
            let (value, origin, _) = self.merge_layers(key);
            let object = Object::from_value(key.kind, &value?).ok()?;
            Some((key.clone(), (object, origin?)))
        };
        Snapshot {
            objects: self.reported_hashes.keys().filter_map(object).collect(),
            problems: self.problems(),
            ignored_documents: Vec::new(),
        }
    }

    /// Returns the documents of a file as last read.
    pub(crate) fn known_documents(&self, id: &FileId) -> KnownDocuments {
        let documents = self
            .files
            .get(id)
            .into_iter()
            .flat_map(|file| file.documents.values());
        documents
            .filter(|document| document.content_hash != 0)
            .map(|document| (document.content_hash, document.clone()))
            .collect()
    }

    fn problems(&self) -> Vec<ManifestProblem> {
        let of_files = self.files.values().flat_map(|file| &file.problems);
        let mut problems: Vec<_> = of_files
            .chain(self.path_problems.values())
            .chain(self.object_problems.values())
            .cloned()
            .collect();
        problems.sort();
        problems
    }

    fn replace_file_state(&mut self, id: &FileId, old: FileState, new: FileState) {
        for (key, document) in &new.documents {
            if old.documents.get(key) != Some(document) {
                self.changed_objects.insert(key.clone());
            }
            self.files_by_object
                .entry(key.clone())
                .or_default()
                .insert(id.clone());
        }
        for key in old
            .documents
            .into_keys()
            .filter(|key| !new.documents.contains_key(key))
        {
            if let Some(holders) = self.files_by_object.get_mut(&key) {
                holders.remove(id);
                if holders.is_empty() {
                    self.files_by_object.remove(&key);
                }
            }
            self.changed_objects.insert(key);
        }
        // Objects of an invalid document were moved out of `old` and may have no entry above.
        self.changed_objects.extend(
            new.documents
                .keys()
                .filter(|key| !self.reported_hashes.contains_key(*key))
                .cloned(),
        );
        let refused = old.rejected.keys().chain(new.rejected.keys());
        self.changed_objects.extend(refused.cloned());
        self.files.insert(id.clone(), new);
    }

    /// Merges the layers of one object again, and returns the change of the object, if any.
    fn merge_object(&mut self, key: ObjectKey) -> Option<ObjectEvent> {
        let old_problem = self.object_problems.remove(&key);
        let (value, origin, mut problem) = self.merge_layers(&key);
        let event = match (value, origin) {
            (Some(value), Some(origin)) => match Object::from_value(key.kind, &value) {
                Ok(object) => {
                    self.record_if_changed(&key, &value)
                        .then_some(ObjectEvent::Applied {
                            object,
                            origin: Some(origin),
                        })
                }
                Err(error) => {
                    problem = Some(ManifestProblem {
                        origin,
                        object: Some(key.clone()),
                        message: format!("{error} (after merging the layers)"),
                    });
                    None
                }
            },
            _ => match self.rejected_object(&key) {
                Some(RejectedObject { error, value }) => {
                    let value = Box::new(value);
                    self.record_if_changed(&key, &value)
                        .then(|| ObjectEvent::Invalid {
                            key: key.clone(),
                            error,
                            value,
                        })
                }
                None => self
                    .reported_hashes
                    .remove(&key)
                    .map(|_| ObjectEvent::Deleted(key.clone())),
            },
        };
        self.problems_changed |= problem != old_problem;
        if let Some(problem) = problem {
            self.object_problems.insert(key, problem);
        }
        event
    }

    /// Returns the invalid object with its error, if no file has a valid version.
    fn rejected_object(&self, key: &ObjectKey) -> Option<RejectedObject> {
        let mut files = self.files.values();
        files.find_map(|file| file.rejected.get(key)).cloned()
    }

    /// Returns whether the object differs from the last reported version; records it as reported.
    fn record_if_changed(&mut self, key: &ObjectKey, value: &Value) -> bool {
        let mut hasher = DefaultHasher::new();
        value.to_string().hash(&mut hasher);
        let hash = hasher.finish();
        self.reported_hashes.insert(key.clone(), hash) != Some(hash)
    }

    /// Merges the documents of an object: the first of each layer, then its overlays. Returns object, position, and
    /// error.
    fn merge_layers(
        &self,
        key: &ObjectKey,
    ) -> (
        Option<Value>,
        Option<ManifestPosition>,
        Option<ManifestProblem>,
    ) {
        let holders = self.files_by_object.get(key).into_iter().flatten();
        let documents: Vec<_> = holders
            .filter_map(|id| Some((id, self.files.get(id)?.documents.get(key)?)))
            .collect();
        let at = |(id, document): &(&FileId, &Document)| ManifestPosition {
            file: Arc::clone(&id.path),
            line: document.line,
        };
        let Some(first) = documents.iter().find(|(_, document)| !document.is_overlay) else {
            return (None, None, None);
        };
        let mut problem = None;
        let mut value = Value::Null;
        let mut begun = false;
        let mut layers: BTreeMap<usize, (&FileId, &Document)> = BTreeMap::new();
        let mut ordered = Vec::new();
        for entry in documents
            .iter()
            .filter(|(_, document)| !document.is_overlay)
        {
            match layers.get(&entry.0.layer) {
                None => {
                    layers.insert(entry.0.layer, *entry);
                    ordered.push((entry.0.layer, false, entry));
                }
                Some(used) if used.1.json != entry.1.json => {
                    problem = Some(ManifestProblem {
                        origin: at(entry),
                        object: Some(key.clone()),
                        message: format!(
                            "is given a second time, differently; {} is used",
                            at(used)
                        ),
                    });
                }
                Some(_) => {}
            }
        }
        ordered.extend(
            documents
                .iter()
                .filter(|(_, document)| document.is_overlay)
                .map(|entry| (entry.0.layer, true, entry)),
        );
        ordered.sort_by_key(|(layer, overlay, entry)| (*layer, *overlay, entry.0.clone()));
        for (_, _, (_, document)) in ordered {
            if begun {
                json_patch::merge(&mut value, &document.value());
            } else {
                value = document.value();
                begun = true;
            }
        }
        (Some(value), Some(at(first)), problem)
    }
}

#[cfg(test)]
mod tests;
