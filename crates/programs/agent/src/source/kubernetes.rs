//! Source of this node's pods, and of namespaces, from the API server.
//!
//! While the API server is unavailable, the known state stays. At a start without it, the agent restores the previous
//! agent's last known state ([`LastKnown`]): captured pods are served, and later changes follow when the API server
//! responds again. [`WatchProgress`] is the pure part.

use std::{collections::BTreeSet, path::Path, time::Duration};

use ambit_k8s_api::{Namespace, Pod};
use ambit_kube_kit::{
    ObjectWatch, WatchEvent,
    watch::{self, ObjectId},
};
use ambit_model::ArcStr;
use ambit_zds::PodUid;
use kube::{
    Api, Client,
    core::{ApiResource, Object, PartialObjectMeta},
};
use tokio::time::Instant;

use super::{
    EarlierObjects, Labels, PodSource, PodView, SourceEvent,
    facts::{self, PodSpecFields, PodStatus},
};

mod last_known;

use last_known::LastKnown;

/// Timeout for the API server's initial lists, after which the agent uses the last known state.
const LIST_TIMEOUT: Duration = Duration::from_secs(3);
/// Minimum interval between writes of the state file.
const MIN_WRITE_INTERVAL: Duration = Duration::from_secs(1);

/// Removes the file with the last known pods and namespaces when the agent is uninstalled, since no agent follows.
pub fn remove_last_known(run_dir: &Path) {
    last_known::remove(run_dir);
}

/// Pod with only the fields that enrolment reads, so that lists take little memory.
type SlimPod = Object<PodSpecFields, PodStatus>;

/// Source that watches the API server for one node.
#[derive(Debug)]
pub struct KubernetesSource {
    pods: ObjectWatch<SlimPod, PodView>,
    namespaces: ObjectWatch<PartialObjectMeta<Namespace>, Labels>,
    progress: WatchProgress,
    file: last_known::LastKnownFile,
    list_deadline: Instant,
    write_at: Option<Instant>,
    no_write_before: Instant,
}

impl KubernetesSource {
    /// Watches the pods of `node`, and the labels with these `keys` of all namespaces. The state file is in `run_dir`.
    pub fn new(client: Client, node: &str, keys: BTreeSet<String>, run_dir: &Path) -> Self {
        let pods: Api<SlimPod> = Api::all_with(client.clone(), &ApiResource::erase::<Pod>(&()));
        let of_node = watch::watcher_config().fields(&format!("spec.nodeName={node}"));
        let file = last_known::LastKnownFile::in_dir(run_dir, node);
        Self {
            pods: ObjectWatch::new("pods", pods, of_node, |pod: &SlimPod| {
                let nothing = PodStatus::default();
                let status = pod.status.as_ref().unwrap_or(&nothing);
                facts::view_of_parts(&pod.metadata, &pod.spec, status)
            }),
            namespaces: ObjectWatch::new(
                "namespaces",
                Api::all(client),
                watch::watcher_config(),
                move |namespace: &PartialObjectMeta<Namespace>| {
                    let mut labels = namespace.metadata.labels.clone().unwrap_or_default();
                    labels.retain(|key, _| keys.contains(key));
                    Some(labels)
                },
            ),
            progress: WatchProgress::new(file.read()),
            file,
            list_deadline: Instant::now() + LIST_TIMEOUT,
            write_at: None,
            no_write_before: Instant::now(),
        }
    }

    fn write_if_due(&mut self) {
        let now = Instant::now();
        if self.write_at.is_some_and(|at| at <= now) {
            self.write_at = None;
            self.no_write_before = now + MIN_WRITE_INTERVAL;
            self.file.write(&self.progress.current);
        }
    }
}

impl PodSource for KubernetesSource {
    async fn next(&mut self) -> Option<Vec<SourceEvent>> {
        if let Some(record) = self.progress.take_record_event() {
            return Some(vec![record]);
        }
        loop {
            let list_deadline = self.list_deadline;
            let waiting = self.progress.can_restore_earlier();
            let write_at = self.write_at;
            let troubled = self.progress.watch_error.is_some();
            let events = tokio::select! {
                event = self.namespaces.next() => self.progress.on_namespace_event(event),
                event = self.pods.next() => self.progress.on_pod_event(event),
                () = tokio::time::sleep_until(list_deadline), if waiting => {
                    self.progress.restore_earlier("no answer yet")
                }
                () = ambit_rt::sleep_until(write_at) => Vec::new(),
            };
            if self.progress.is_synced() && self.write_at.is_none() && !events.is_empty() {
                self.write_at = Some(self.no_write_before);
            }
            self.write_if_due();
            if !events.is_empty() || troubled != self.progress.watch_error.is_some() {
                return Some(events);
            }
        }
    }

    fn outdated_reason(&self) -> Option<&str> {
        self.progress.watch_error.as_deref()
    }
}

/// Progress of the watches: events that were sent, and lists of the API server that must confirm restored objects.
#[derive(Debug)]
struct WatchProgress {
    current: LastKnown,
    /// State of the previous agent, from its file; taken when it is restored, or not needed any more.
    earlier_state: Option<LastKnown>,
    /// Pods restored from the previous agent's state that no list of the API server has confirmed yet.
    unconfirmed_pods: BTreeSet<PodUid>,
    unconfirmed_namespaces: BTreeSet<ArcStr>,
    pods_listed: bool,
    namespaces_listed: bool,
    synced: bool,
    watch_error: Option<String>,
    /// Whether [`SourceEvent::Recorded`] was sent, or is not needed because the previous agent left no state.
    is_record_sent: bool,
}

impl WatchProgress {
    fn new(before: Option<LastKnown>) -> Self {
        Self {
            current: LastKnown::default(),
            is_record_sent: before.is_none(),
            earlier_state: before,
            unconfirmed_pods: BTreeSet::new(),
            unconfirmed_namespaces: BTreeSet::new(),
            pods_listed: false,
            namespaces_listed: false,
            synced: false,
            watch_error: None,
        }
    }

    /// Returns [`SourceEvent::Recorded`] with the previous agent's state, on the first call only.
    fn take_record_event(&mut self) -> Option<SourceEvent> {
        if std::mem::replace(&mut self.is_record_sent, true) {
            return None;
        }
        let before = self.earlier_state.as_ref()?;
        Some(SourceEvent::Recorded(EarlierObjects {
            namespaces: before.namespaces.clone(),
            pods: before.pods.keys().cloned().collect(),
        }))
    }

    fn is_synced(&self) -> bool {
        self.synced
    }

    fn can_restore_earlier(&self) -> bool {
        !self.synced && self.earlier_state.is_some()
    }

    fn on_pod_event(&mut self, event: WatchEvent<PodView>) -> Vec<SourceEvent> {
        match event {
            WatchEvent::ListStarted => Vec::new(),
            WatchEvent::Object(_, view) => {
                self.unconfirmed_pods.remove(&view.uid);
                vec![self.record_pod(view)]
            }
            WatchEvent::Removed(ObjectId { uid, .. }) => {
                vec![self.record_pod_removal(uid.to_ascii_lowercase().into())]
            }
            WatchEvent::ListCompleted => {
                self.pods_listed = true;
                let gone = std::mem::take(&mut self.unconfirmed_pods);
                let mut events: Vec<_> = gone
                    .into_iter()
                    .map(|uid| self.record_pod_removal(uid))
                    .collect();
                self.on_list_complete(&mut events);
                events
            }
            WatchEvent::Unavailable(why) => {
                self.pods_listed = false;
                self.on_disconnected(why)
            }
        }
    }

    fn on_namespace_event(&mut self, event: WatchEvent<Labels>) -> Vec<SourceEvent> {
        match event {
            WatchEvent::ListStarted => Vec::new(),
            WatchEvent::Object(id, labels) => {
                let name = ArcStr::from(&*id.name);
                self.unconfirmed_namespaces.remove(&name);
                vec![self.record_namespace(name, labels)]
            }
            WatchEvent::Removed(id) => vec![self.record_namespace_removal(ArcStr::from(&*id.name))],
            WatchEvent::ListCompleted => {
                self.namespaces_listed = true;
                let gone = std::mem::take(&mut self.unconfirmed_namespaces);
                let mut events: Vec<_> = gone
                    .into_iter()
                    .map(|name| self.record_namespace_removal(name))
                    .collect();
                self.on_list_complete(&mut events);
                events
            }
            WatchEvent::Unavailable(why) => {
                self.namespaces_listed = false;
                self.on_disconnected(why)
            }
        }
    }

    fn on_list_complete(&mut self, events: &mut Vec<SourceEvent>) {
        if self.pods_listed && self.namespaces_listed {
            self.watch_error = None;
            self.earlier_state = None;
            if !std::mem::replace(&mut self.synced, true) {
                events.push(SourceEvent::Synced);
            }
        }
    }

    fn on_disconnected(&mut self, why: String) -> Vec<SourceEvent> {
        let events = self.restore_earlier(&why);
        self.watch_error = Some(why);
        events
    }

    /// Returns events that restore the previous agent's state, except for objects that the API server has sent already.
    fn restore_earlier(&mut self, why: &str) -> Vec<SourceEvent> {
        if self.synced {
            return Vec::new();
        }
        let Some(before) = self.earlier_state.take() else {
            return Vec::new();
        };
        tracing::warn!(
            error = why,
            pods = before.pods.len(),
            "the Kubernetes API is unavailable; starting from the last known objects"
        );
        let mut events = Vec::new();
        for (name, labels) in before.namespaces {
            if !self.current.namespaces.contains_key(&name) {
                self.unconfirmed_namespaces.insert(name.clone());
                events.push(self.record_namespace(name, labels));
            }
        }
        for (uid, view) in before.pods {
            if !self.current.pods.contains_key(&uid) {
                self.unconfirmed_pods.insert(uid);
                events.push(self.record_pod(view));
            }
        }
        self.synced = true;
        events.push(SourceEvent::Synced);
        events
    }

    fn record_pod(&mut self, view: PodView) -> SourceEvent {
        self.current.pods.insert(view.uid.clone(), view.clone());
        SourceEvent::Pod(view)
    }

    fn record_pod_removal(&mut self, uid: PodUid) -> SourceEvent {
        self.current.pods.remove(&uid);
        SourceEvent::PodGone(uid)
    }

    fn record_namespace(&mut self, name: ArcStr, labels: Labels) -> SourceEvent {
        self.current.namespaces.insert(name.clone(), labels.clone());
        SourceEvent::Namespace(name, labels)
    }

    fn record_namespace_removal(&mut self, name: ArcStr) -> SourceEvent {
        self.current.namespaces.remove(&name);
        SourceEvent::NamespaceGone(name)
    }
}

#[cfg(test)]
mod tests;
