//! Encoded responses that several clients share.
//!
//! Most clients subscribe to everything and have the same revision: their initial state and each
//! following step are the same bytes for all of them.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock, Weak},
};

use ambit_model::ArcStr;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::{encoded_record::EncodedRecord, scope::View, wire_format};

/// Number of recent steps (changes between two revisions) that are cached for slower clients.
const MAX_CACHED_STEPS: usize = 16;

/// Records and names that a push carries.
#[derive(Debug)]
pub struct Batch {
    /// View that the batch is built for.
    pub view: View,
    /// Records that are new or changed.
    pub resources: Vec<Arc<EncodedRecord>>,
    /// Names of removed records.
    pub removed_names: Vec<ArcStr>,
    /// Whether records are sent with their aliases.
    with_aliases: bool,
    encoded: OnceLock<Vec<Bytes>>,
}

impl Batch {
    /// Creates the batch for wildcard clients, which know records by one name.
    pub fn new(view: View, resources: Vec<Arc<EncodedRecord>>, mut removed: Vec<ArcStr>) -> Self {
        removed.sort_unstable();
        Self {
            view,
            resources,
            removed_names: removed,
            with_aliases: false,
            encoded: OnceLock::new(),
        }
    }

    /// Includes records' aliases, for clients that subscribe to single records.
    #[must_use]
    pub fn with_aliases(mut self) -> Self {
        self.with_aliases = true;
        self
    }

    /// Returns whether the batch has neither records nor removed names.
    pub fn is_empty(&self) -> bool {
        self.resources.is_empty() && self.removed_names.is_empty()
    }

    /// Returns the encoded batch in pieces. The first call encodes it for all clients.
    pub fn encoded(&self) -> &[Bytes] {
        self.encoded.get_or_init(|| {
            let resource_type = self.view.resource_type();
            wire_format::encode(
                resource_type,
                &self.resources,
                &self.removed_names,
                self.with_aliases,
            )
        })
    }
}

/// Delta xDS response to one client.
#[derive(Clone, Debug)]
pub struct Push {
    /// Nonce of the response, which the client's acknowledgement repeats.
    pub nonce: String,
    /// Revision of the store from which the batch was built.
    pub system_version: String,
    /// Batch of new or changed records, and of names that do not exist.
    pub batch: Arc<Batch>,
}

impl Push {
    /// Returns the gRPC message in pieces, all but the first of which clients share.
    pub(crate) fn message(&self) -> impl Iterator<Item = Bytes> {
        let resource_type = self.batch.view.resource_type();
        let shared = self.batch.encoded();
        wire_format::frame_response(resource_type, &self.nonce, &self.system_version, shared)
    }
}

/// Part of a step (changes between two revisions) that a push carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepContent {
    /// Records and removed names.
    RecordsAndRemovals,
    /// Existing records only.
    RecordsOnly,
    /// Names of removed records only.
    RemovalsOnly,
}

#[derive(Debug)]
struct CachedStep {
    view: View,
    content: StepContent,
    from_revision: u64,
    to_revision: u64,
    batch: Arc<Batch>,
}

/// All records of a view at one revision.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Revision of the store.
    pub revision: u64,
    /// Batch with the records.
    pub batch: Arc<Batch>,
}

/// Cache of encoded xDS responses, each of which several clients can get.
#[derive(Debug, Default)]
pub struct BatchCache {
    steps: Mutex<VecDeque<CachedStep>>,
    /// Recent snapshots by view and revision, kept alive by the streams that send them.
    snapshots: Mutex<Vec<(View, u64, Weak<Batch>)>>,
}

impl BatchCache {
    /// Returns the cached snapshot of a view if it is recent, or else a new one.
    pub(crate) fn snapshot(
        &self,
        view: &View,
        is_recent: impl Fn(u64) -> bool,
        new: impl FnOnce() -> Snapshot,
    ) -> Snapshot {
        let mut snapshots = self.snapshots.lock();
        snapshots.retain(|(of, revision, batch)| {
            batch.strong_count() > 0 && (of != view || is_recent(*revision))
        });
        let found = snapshots.iter().find(|(of, ..)| of == view);
        if let Some((_, revision, batch)) = found
            && let Some(batch) = batch.upgrade()
        {
            return Snapshot {
                revision: *revision,
                batch,
            };
        }
        let snapshot = new();
        snapshots.push((
            view.clone(),
            snapshot.revision,
            Arc::downgrade(&snapshot.batch),
        ));
        snapshot
    }

    /// Returns the cached batch of the changes between two revisions, or a new one; `None` if
    /// nothing changed.
    pub(crate) fn step(
        &self,
        view: &View,
        part: StepContent,
        (from, to): (u64, u64),
        new: impl FnOnce() -> Option<Batch>,
    ) -> Option<Arc<Batch>> {
        let mut steps = self.steps.lock();
        let found = steps.iter().rev().find(|step| {
            (
                &step.view,
                step.content,
                step.from_revision,
                step.to_revision,
            ) == (view, part, from, to)
        });
        if let Some(step) = found {
            return Some(Arc::clone(&step.batch));
        }
        let batch = Arc::new(new()?);
        if steps.len() >= MAX_CACHED_STEPS {
            steps.pop_front();
        }
        steps.push_back(CachedStep {
            view: view.clone(),
            content: part,
            from_revision: from,
            to_revision: to,
            batch: Arc::clone(&batch),
        });
        Some(batch)
    }
}
