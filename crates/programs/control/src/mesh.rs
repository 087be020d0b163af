//! Moves changes from the source of objects to the xDS server's store.
//!
//! One task owns the index. Pods reach the pod directory at once (a certificate may be requested in the same moment);
//! publication is debounced, so that a burst becomes one push.

use std::{sync::Arc, time::Duration};

use ambit_caller_auth::WaypointRegistry;
use ambit_derive::{
    AcceptedTrustDomains, Index, MeshConfig, PodDirectory, Problem, RegisteredService, Severity,
};
use ambit_k8s_api::{ObjectEvent, selector::LabelSelector};
use ambit_rt::DrainWatcher;
use ambit_status_writer::{ObservedObject, Report, StatusFacts};
use ambit_xds_server::{ResourceType, Store};
use parking_lot::RwLock;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};

use crate::{
    change::Change,
    key_sets::{self, KeySets},
    metrics::Metrics,
    source::Source,
};

/// Time without changes after which records are published.
const PUBLICATION_DEBOUNCE: Duration = Duration::from_millis(10);
/// Maximum delay between a change of an object and the publication of its records.
const MAX_PUBLICATION_DELAY: Duration = Duration::from_millis(100);
/// Capacity of the queue of requests to the task that owns the index.
const QUERY_QUEUE_CAPACITY: usize = 4;

/// Handle of the mesh's objects and records for other parts of the process.
#[derive(Clone, Debug)]
pub struct Mesh {
    /// Store of published records.
    pub store: Arc<RwLock<Store>>,
    /// Pods with their nodes and service accounts.
    pub pods: Arc<RwLock<PodDirectory>>,
    /// Problems of single objects; [`Mesh::problems`] also returns problems that several objects cause together.
    pub problems: Arc<RwLock<Problems>>,
    queries: mpsc::Sender<MeshQuery>,
    /// Number of publications of records; 0 before the first.
    pub published_version: watch::Receiver<u64>,
    /// Counter of changes of `pods` and waypoints; 0 until the initial objects were processed.
    pub followed_version: watch::Receiver<u64>,
    /// Discovery selectors of the mesh's namespaces; `None` until the initial objects are known.
    pub discovery_selectors: watch::Receiver<Option<Vec<LabelSelector>>>,
    /// Trust domains that are accepted besides the mesh's own; `None` until the initial objects are known.
    pub trust_domains: watch::Receiver<Option<AcceptedTrustDomains>>,
}

/// Request to the task that owns the index, with the channel for the response.
#[derive(Debug)]
enum MeshQuery {
    /// Request for [`Index::all_problems`].
    Problems(oneshot::Sender<Vec<Problem>>),
    /// Request for [`Index::registry`].
    Registry(oneshot::Sender<Vec<RegisteredService>>),
}

/// Current problems of all objects.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Problems {
    /// Documents that cannot be parsed, with file and line.
    pub manifests: Vec<String>,
    /// Reasons why kinds cannot be followed, or not fully, because of their CRD.
    pub definitions: Vec<String>,
    /// Errors in objects that have no effect, or only a partial one.
    pub objects: Vec<Problem>,
}

impl Mesh {
    /// Returns the problems of all objects, including problems that several objects cause together.
    pub async fn problems(&self) -> Problems {
        let mut problems = self.problems.read().clone();
        // When objects are no longer followed, the last known problems remain.
        if let Some(objects) = self.query(MeshQuery::Problems).await {
            problems.objects = objects;
        }
        problems
    }

    /// Returns all services with their hosts; `None` if objects are no longer followed.
    pub async fn registry(&self) -> Option<Vec<RegisteredService>> {
        self.query(MeshQuery::Registry).await
    }

    async fn query<T>(&self, inquiry: impl FnOnce(oneshot::Sender<T>) -> MeshQuery) -> Option<T> {
        let (sender, answer) = oneshot::channel();
        self.queries.send(inquiry(sender)).await.ok()?;
        answer.await.ok()
    }
}

/// Starts following objects until the drain. Sends status reports about objects to `reports`, if set.
pub(crate) fn start(
    source: Source,
    config: MeshConfig,
    key_sets: KeySets,
    reports: Option<mpsc::UnboundedSender<Report>>,
    waypoints: Arc<WaypointRegistry>,
    metrics: Arc<Metrics>,
    drain: DrainWatcher,
) -> Mesh {
    let (publish, published) = watch::channel(0);
    let (follow, followed) = watch::channel(0);
    let (inquiries, requests) = mpsc::channel(QUERY_QUEUE_CAPACITY);
    let (discover, discovery) = watch::channel(None);
    let (accept, trust_domains) = watch::channel(None);
    let mesh = Mesh {
        store: Arc::default(),
        pods: Arc::default(),
        problems: Arc::default(),
        queries: inquiries,
        published_version: published,
        followed_version: followed,
        discovery_selectors: discovery,
        trust_domains,
    };
    let follower = SourceFollower {
        mesh: mesh.clone(),
        index: Index::new(config),
        key_sets,
        reports,
        waypoints,
        metrics,
        published_version: publish,
        followed_version: follow,
        discovery_selectors: discover,
        accepted_trust_domains: accept,
    };
    ambit_rt::spawn("mesh", follower.run(source, requests, drain));
    mesh
}

struct SourceFollower {
    mesh: Mesh,
    index: Index,
    key_sets: KeySets,
    reports: Option<mpsc::UnboundedSender<Report>>,
    waypoints: Arc<WaypointRegistry>,
    metrics: Arc<Metrics>,
    published_version: watch::Sender<u64>,
    followed_version: watch::Sender<u64>,
    discovery_selectors: watch::Sender<Option<Vec<LabelSelector>>>,
    accepted_trust_domains: watch::Sender<Option<AcceptedTrustDomains>>,
}

impl SourceFollower {
    async fn run(
        mut self,
        mut source: Source,
        mut inquiries: mpsc::Receiver<MeshQuery>,
        mut drain: DrainWatcher,
    ) {
        // Times of the oldest and the newest unpublished change.
        let mut waiting: Option<(Instant, Instant)> = None;
        loop {
            let due = waiting.map(|(first, last)| {
                (last + PUBLICATION_DEBOUNCE).min(first + MAX_PUBLICATION_DELAY)
            });
            tokio::select! {
                change = source.next_change() => match change {
                    Some(change) => {
                        let now = Instant::now();
                        self.apply_change(&change);
                        if change.is_complete {
                            let first = waiting.map_or(now, |(first, _)| first);
                            waiting = Some((first, now));
                        }
                    }
                    None => {
                        tracing::error!("objects are no longer followed; the last state stays");
                        drop(inquiries);
                        drain.wait_until_started().await;
                        return;
                    }
                },
                event = self.key_sets.next() => match event {
                    key_sets::KeySetEvent::Fetched(source, state) => {
                        self.index.set_keys(&source, state);
                        let now = Instant::now();
                        let first = waiting.map_or(now, |(first, _)| first);
                        waiting = Some((first, now));
                    }
                    key_sets::KeySetEvent::CalleeCheck(inquiry) => {
                        let may_call = self.index.view().may_fetch_keys(&inquiry.namespace, inquiry.ip);
                        inquiry.reply(may_call);
                    }
                },
                Some(inquiry) = inquiries.recv() => self.answer_query(inquiry),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    let since = waiting.take().map(|(first, _)| first.elapsed()).unwrap_or_default();
                    self.publish_changes(since);
                }
                _ = drain.wait_until_started() => return,
            }
        }
    }

    fn answer_query(&self, inquiry: MeshQuery) {
        // Sending fails only without a receiver.
        match inquiry {
            MeshQuery::Problems(reply) => drop(reply.send(self.index.all_problems())),
            MeshQuery::Registry(reply) => drop(reply.send(self.index.view().registry())),
        }
    }

    fn apply_change(&mut self, change: &Change) {
        let mut pods = self.mesh.pods.write();
        for event in &change.events {
            self.index.handle(event, &mut pods);
            if let Some(reports) = &self.reports {
                // Fails only when the process ends.
                status_report(&self.index, event).map(|report| reports.send(report).ok());
            }
        }
        drop(pods);
        if change.is_complete {
            if *self.followed_version.borrow() == 0
                && let Some(reports) = &self.reports
            {
                reports.send(Report::InitialObjectsObserved).ok();
            }
            self.followed_version.send_modify(|number| *number += 1);
        }
        self.metrics.count_changed_objects(change.events.len());
        self.record_problems(change);
    }

    fn record_problems(&mut self, change: &Change) {
        let changed = self.index.take_changed_problems();
        let mut problems = self.mesh.problems.write();
        if let Some(manifests) = &change.manifest_problems {
            for problem in manifests
                .iter()
                .filter(|problem| !problems.manifests.contains(problem))
            {
                tracing::error!(problem, "a manifest cannot be used as it is written");
            }
            problems.manifests.clone_from(manifests);
        }
        if let Some(definitions) = &change.crd_problems {
            problems.definitions.clone_from(definitions);
        }
        for problem in changed.iter().flat_map(|key| self.index.problems_of(key)) {
            match problem.severity {
                Severity::Error => tracing::error!(%problem, "an object cannot be used"),
                Severity::Warning => {
                    tracing::warn!(%problem, "an object has less effect than its spec");
                }
            }
        }
        if !changed.is_empty() {
            problems.objects = self.index.problems().cloned().collect();
        }
        let errors = problems
            .objects
            .iter()
            .filter(|problem| problem.severity == Severity::Error)
            .count();
        let warnings = problems.objects.len() - errors;
        self.metrics.set_problems(
            errors + problems.manifests.len() + problems.definitions.len(),
            warnings,
        );
    }

    /// Reports problems and derived conditions of objects that changed because of other objects.
    fn report_derived_changes(&mut self) {
        for key in self.index.take_changed_conflicts() {
            if let Some(reports) = &self.reports {
                let problems = self.index.problems_of(&key);
                // Fails only when the process ends.
                reports.send(Report::ProblemsChanged(key, problems)).ok();
            }
        }
        for key in self.index.take_changed_derived_statuses() {
            if let Some(reports) = &self.reports {
                let derived_status = self.index.derived_status(&key).cloned().unwrap_or_default();
                reports
                    .send(Report::DerivedStatusChanged(key, derived_status))
                    .ok();
            }
        }
        self.record_problems(&Change::default());
    }

    fn publish_changes(&mut self, since: Duration) {
        let desired = self.index.view().key_sources();
        self.index.retain_keys(&desired);
        self.key_sets
            .set_protected_addresses(self.index.view().cluster_addresses());
        self.key_sets.set_desired(desired);
        let delta = self.index.flush();
        self.report_derived_changes();
        let selectors = self.index.view().discovery_selectors();
        if self.discovery_selectors.borrow().as_deref() != Some(selectors) {
            self.discovery_selectors
                .send_replace(Some(selectors.to_vec()));
        }
        let accepted = Some(self.index.view().accepted_trust_domains());
        if *self.accepted_trust_domains.borrow() != accepted {
            self.accepted_trust_domains.send_replace(accepted);
        }
        if self.waypoints.update(&delta) {
            self.followed_version.send_modify(|number| *number += 1);
        }
        let mut store = self.mesh.store.write();
        let changed = store.update(&delta);
        let records = ResourceType::all();
        let records: Vec<_> = records
            .filter(|of| of.is_whole_collection())
            .map(|of| (of, store.count(of.collection())))
            .collect();
        drop(store);
        self.metrics
            .record_publication(changed, since, records.iter().copied());
        let first = *self.published_version.borrow() == 0;
        if changed > 0 || first {
            let records: usize = records.iter().map(|(_, count)| count).sum();
            tracing::debug!(changed, records, "published");
            self.published_version.send_modify(|number| *number += 1);
        }
    }
}

/// Returns the status report about a changed object; `None` if its kind has no status.
fn status_report(index: &Index, event: &ObjectEvent) -> Option<Report> {
    let (key, facts) = match event {
        ObjectEvent::Applied { object, .. } => {
            let key = object.key();
            if !ambit_status_writer::has_status(key.kind) && !index.has_new_problems(&key) {
                return None;
            }
            (key, StatusFacts::from_object(object))
        }
        ObjectEvent::Invalid { key, value, .. } => {
            (key.clone(), StatusFacts::from_invalid_json(key.kind, value))
        }
        ObjectEvent::Deleted(key) => {
            return ambit_status_writer::has_status(key.kind)
                .then(|| Report::ObjectDeleted(key.clone()));
        }
    };
    Some(Report::ObjectObserved(Box::new(ObservedObject {
        facts,
        problems: index.problems_of(&key),
        has_new_problems: index.has_new_problems(&key),
        in_force: index.view().is_in_force(&key),
        derived_status: index.derived_status(&key).cloned(),
        key,
    })))
}
