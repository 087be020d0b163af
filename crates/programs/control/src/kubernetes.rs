//! The Kubernetes API as the source of objects.
//!
//! Each kind has a watch in a task of its own; [`Informers`] receives their updates. `ambit_derive` declares which
//! kinds are watched, and how. Objects are reduced to the fields that the mesh reads when they are deserialized. Custom
//! kinds may have no CRD in the cluster, now or later: see [`custom`].
//!
//! Permissions of the service account:
//!
//! | group | resources | verbs |
//! |---|---|---|
//! | core | pods, services, namespaces, nodes | list, watch |
//! | discovery.k8s.io | endpointslices | list, watch |
//! | networking.istio.io | serviceentries, workloadentries, virtualservices, destinationrules, envoyfilters | list, watch |
//! | security.istio.io | authorizationpolicies, peerauthentications, requestauthentications | list, watch |
//! | telemetry.istio.io | telemetries | list, watch |
//! | extensions.istio.io | wasmplugins | list, watch |
//! | gateway.networking.k8s.io | gateways, gatewayclasses, httproutes, referencegrants, grpcroutes, tcproutes, tlsroutes, backendtlspolicies | list, watch |
//! | ambit.io | httpfaults, ratelimits | list, watch |
//! | apiextensions.k8s.io | customresourcedefinitions | get, list, watch |
//! | authentication.k8s.io | tokenreviews | create |
//! | authorization.k8s.io, with --listen-flows | subjectaccessreviews | create |
//! | core | services/status | patch |
//! | networking.istio.io | serviceentries/status, workloadentries/status, destinationrules/status | patch |
//! | security.istio.io | authorizationpolicies/status, peerauthentications/status | patch |
//! | ambit.io | httpfaults/status, ratelimits/status | patch |
//! | security.istio.io | authorizationpolicies/status, peerauthentications/status, requestauthentications/status | patch |
//! | telemetry.istio.io | telemetries/status | patch |
//! | extensions.istio.io | wasmplugins/status | patch |
//! | gateway.networking.k8s.io | gateways/status, gatewayclasses/status, httproutes/status, grpcroutes/status, tcproutes/status, tlsroutes/status, backendtlspolicies/status | patch |
//! | core | configmaps | create, list, watch; those named istio-ca-root-cert, istio-ca-crl, ambit-trust-domains: patch, delete |
//! | events.k8s.io | events | create, patch |
//! | coordination.k8s.io, own namespace | leases | create; those named ambit-control-leader and ambit-mesh-leader: get, update |
//! | core, with --untaint-nodes | nodes | patch |
//! | core, own namespace, with --reset-restart-backoff | pods | delete |
//! | core, with --image-pull-secrets | secrets | list, watch |
//! | core, own namespace | secrets | create; the one named istio-ca-secret: get, list, watch, update |

mod custom;
mod definitions;
mod slim_object;
mod updates;

use std::collections::{BTreeMap, BTreeSet};

use ambit_derive::{FetchExtent, FetchedKind, KindVisitor, visit_kinds};
use ambit_k8s_api::{Definition, Kind};
use ambit_kube_kit::watch;
use ambit_rt::DrainWatcher;
use kube::{Api, Client, core::PartialObjectMeta, runtime::watcher};
use tokio::sync::{mpsc, watch as signal};

use crate::change::Change;
pub(crate) use definitions::custom_resource;
use slim_object::SlimObject;
use updates::{Update, UpdateSender};

/// Capacity of the queue of updates for the index; when it is full, the watches wait.
const QUEUE_CAPACITY: usize = 1024;
/// Maximum number of updates in one change.
const MAX_BATCH: usize = 512;

/// Receiver of the updates of all watches.
#[derive(Debug)]
pub struct Informers {
    updates: mpsc::Receiver<Update>,
    /// Kinds whose initial list is not complete yet.
    unlisted_kinds: BTreeSet<Kind>,
    /// Reasons why CRDs cannot be followed, by kind.
    crd_problems: BTreeMap<Kind, String>,
}

impl Informers {
    /// Starts the watches (of Secrets only if `secrets`), which end with the drain.
    pub fn start(client: &Client, secrets: bool, drain: &DrainWatcher) -> Self {
        let (sender, updates) = mpsc::channel(QUEUE_CAPACITY);
        let mut start = KindWatchStarter {
            client: client.clone(),
            watches_secrets: secrets,
            updates: UpdateSender {
                sender,
                drain: drain.clone(),
            },
            crd_changes: definitions::watch_crds(client, drain),
            unlisted_kinds: BTreeSet::new(),
        };
        visit_kinds(&mut start);
        Self {
            updates,
            unlisted_kinds: start.unlisted_kinds,
            crd_problems: BTreeMap::new(),
        }
    }

    /// Waits for the next change; `None` if all watches have ended.
    pub async fn next_change(&mut self) -> Option<Change> {
        let mut batch = Vec::new();
        if self.updates.recv_many(&mut batch, MAX_BATCH).await == 0 {
            return None;
        }
        let mut change = Change::default();
        for update in batch {
            match update {
                Update::Object(event) => change.events.push(event),
                Update::CrdProblem(kind, problem) => {
                    match problem {
                        Some(problem) => drop(self.crd_problems.insert(kind, problem)),
                        None => drop(self.crd_problems.remove(&kind)),
                    }
                    change.crd_problems = Some(self.crd_problems.values().cloned().collect());
                }
                Update::KindListed(kind) => {
                    if self.unlisted_kinds.remove(&kind) && self.unlisted_kinds.is_empty() {
                        tracing::info!("every object of the cluster is read");
                    }
                }
            }
        }
        change.is_complete = self.unlisted_kinds.is_empty();
        Some(change)
    }
}

/// Visitor of kinds, which starts the watch of each.
struct KindWatchStarter {
    client: Client,
    /// Whether to watch Secrets.
    watches_secrets: bool,
    updates: UpdateSender,
    /// Counter that grows whenever a CRD of the cluster changes.
    crd_changes: signal::Receiver<u64>,
    unlisted_kinds: BTreeSet<Kind>,
}

impl KindVisitor for KindWatchStarter {
    fn visit<K: FetchedKind>(&mut self) {
        let kind = K::OBJECT_KIND;
        if kind == Kind::Secret && !self.watches_secrets {
            return;
        }
        let config = match K::FETCH_EXTENT {
            FetchExtent::Nothing => return,
            FetchExtent::ExistenceOnly
            | FetchExtent::MetadataOnly
            | FetchExtent::Whole { labels: None } => watch::watcher_config(),
            FetchExtent::Whole {
                labels: Some(labels),
            } => watch::watcher_config().labels(labels),
        };
        if K::FETCH_EXTENT != FetchExtent::ExistenceOnly {
            self.unlisted_kinds.insert(kind);
        }
        let client = self.client.clone();
        match (kind.definition(), K::FETCH_EXTENT) {
            (Definition::Custom | Definition::PresenceOnly, _) => self.follow_custom(kind, config),
            (Definition::BuiltIn, FetchExtent::MetadataOnly) => {
                let api = Api::<PartialObjectMeta<K>>::all(client);
                self.updates
                    .watch_kind(kind, api, config, slim_object::metadata_only);
            }
            (Definition::BuiltIn, _) => {
                let api = Api::<SlimObject<K>>::all(client);
                let read = |slim: &SlimObject<K>| slim.0.clone().into();
                self.updates.watch_kind(kind, api, config, read);
            }
        }
    }
}

impl KindWatchStarter {
    fn follow_custom(&self, kind: Kind, config: watcher::Config) {
        let follower = custom::CustomKindFollower {
            client: self.client.clone(),
            kind,
            config,
            updates: self.updates.clone(),
            crd_changes: self.crd_changes.clone(),
        };
        let mut drain = self.updates.drain.clone();
        ambit_rt::spawn("informer", async move {
            tokio::select! {
                () = follower.run() => {}
                _ = drain.wait_until_started() => {}
            }
        });
    }
}
