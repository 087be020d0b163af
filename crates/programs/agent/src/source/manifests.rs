//! Source of this node's pods, and of namespaces, from directories of manifests.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use ambit_k8s_api::{Namespace, Object, ObjectKey, Pod};
use ambit_manifests::{ManifestChange, ManifestDirs, ManifestProblem, ObjectEvent, OpenError};
use ambit_zds::PodUid;

use super::{PodSource, SourceEvent, facts};

/// Source that watches directories of manifests for one node.
#[derive(Debug)]
pub struct ManifestSource {
    dirs: ManifestDirs,
    node_view: NodeView,
}

impl ManifestSource {
    /// Reads and watches `directories`, of which later ones override earlier ones, for the pods of `node`.
    ///
    /// # Errors
    /// When a directory cannot be read.
    pub fn open(directories: Vec<PathBuf>, node: &str) -> Result<Self, OpenError> {
        Ok(Self {
            dirs: ManifestDirs::open(directories)?,
            node_view: NodeView::new(node),
        })
    }
}

impl PodSource for ManifestSource {
    async fn next(&mut self) -> Option<Vec<SourceEvent>> {
        let change = self.dirs.next_change().await?;
        Some(self.node_view.translate(change))
    }
}

/// Selects the pods of this node among the manifests' objects.
#[derive(Debug)]
struct NodeView {
    node: String,
    /// UIDs of this node's pods by name, since a pod may be recreated with another UID.
    pods: BTreeMap<ObjectKey, PodUid>,
    problems: BTreeSet<ManifestProblem>,
    synced: bool,
}

impl NodeView {
    fn new(node: &str) -> Self {
        let node = node.to_owned();
        Self {
            node,
            pods: BTreeMap::new(),
            problems: BTreeSet::new(),
            synced: false,
        }
    }

    fn translate(&mut self, change: ManifestChange) -> Vec<SourceEvent> {
        let mut events = Vec::new();
        for event in change.events {
            self.on_object(event, &mut events);
        }
        self.log_problems(&change.problems);
        if !std::mem::replace(&mut self.synced, true) {
            events.push(SourceEvent::Synced);
        }
        events
    }

    fn on_object(&mut self, event: ObjectEvent, events: &mut Vec<SourceEvent>) {
        match event {
            ObjectEvent::Applied {
                object: Object::Namespace(namespace),
                ..
            } => {
                let Namespace { metadata, .. } = &*namespace;
                let name = metadata.name.as_deref().unwrap_or_default();
                let labels = metadata.labels.clone().unwrap_or_default();
                events.push(SourceEvent::Namespace(name.into(), labels));
            }
            ObjectEvent::Applied {
                object: Object::Pod(pod),
                ..
            } => {
                let key = Object::Pod(Arc::clone(&pod)).key();
                let on_node = |pod: &&Arc<Pod>| {
                    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(&self.node)
                };
                match Some(&pod)
                    .filter(on_node)
                    .and_then(|pod| pod_view(pod, &key))
                {
                    Some(view) => {
                        let before = self.pods.insert(key, view.uid.clone());
                        if let Some(before) = before.filter(|before| *before != view.uid) {
                            events.push(SourceEvent::PodGone(before));
                        }
                        events.push(SourceEvent::Pod(view));
                    }
                    None => self.on_deleted(&key, events),
                }
            }
            ObjectEvent::Applied { .. } | ObjectEvent::Invalid { .. } => {}
            ObjectEvent::Deleted(key) => match key.kind {
                ambit_k8s_api::Kind::Namespace => {
                    events.push(SourceEvent::NamespaceGone(key.name));
                }
                _ => self.on_deleted(&key, events),
            },
        }
    }

    fn on_deleted(&mut self, key: &ObjectKey, events: &mut Vec<SourceEvent>) {
        if let Some(uid) = self.pods.remove(key) {
            events.push(SourceEvent::PodGone(uid));
        }
    }

    fn log_problems(&mut self, problems: &[ManifestProblem]) {
        let current: BTreeSet<_> = problems.iter().cloned().collect();
        for problem in current.difference(&self.problems) {
            tracing::warn!(%problem, "a manifest cannot be used; its last good state stays");
        }
        self.problems = current;
    }
}

/// Extracts the attributes of a pod, with the namespace of `key`, since a manifest may omit it.
fn pod_view(pod: &Pod, key: &ObjectKey) -> Option<super::PodView> {
    let mut view = facts::view_of_pod(pod)?;
    view.name.namespace = key.namespace.clone();
    view.name.name = key.name.clone();
    Some(view)
}

#[cfg(test)]
mod tests;
