//! The Kubernetes API as the source of objects.
//!
//! One watch a kind, each in a task of its own; [`Informers`] gathers what they tell. An object is cut
//! down to what the mesh reads before anything else sees it. Endpoint slices that Kubernetes itself
//! keeps for services with a selector are not watched: their pods are known by the selector. Kinds of
//! Istio may have no definition in the cluster, now or later: see [`custom`].
//!
//! What the service account needs:
//!
//! | group | resources | verbs |
//! |---|---|---|
//! | core | pods, services, namespaces, nodes | list, watch |
//! | discovery.k8s.io | endpointslices | list, watch |
//! | networking.istio.io | serviceentries, workloadentries | list, watch |
//! | security.istio.io | authorizationpolicies, peerauthentications | list, watch |
//! | apiextensions.k8s.io | customresourcedefinitions | get, list, watch |
//! | authentication.k8s.io | tokenreviews | create |
//! | core | services/status | patch |
//! | networking.istio.io | serviceentries/status, workloadentries/status | patch |
//! | security.istio.io | authorizationpolicies/status, peerauthentications/status | patch |
//! | core | configmaps | create; those named istio-ca-root-cert, istio-ca-crl: list, watch, patch, delete |
//! | events.k8s.io | events | create, patch |
//! | coordination.k8s.io, own namespace | leases | create; the one named ambit-control-leader: get, update |
//! | core, with --untaint-nodes | nodes | patch |
//! | core, own namespace | secrets | create; the one named istio-ca-secret: get, list, watch, update |

mod custom;
mod definitions;
mod slim;

use std::{collections::BTreeSet, fmt};

use ambit_k8s_api::{EndpointSlice, Kind, Namespace, Node, Object, ObjectKey, Service};
use ambit_kube_kit::watch::{self, ObjectId, Watch, WatchEvent};
use ambit_rt::DrainWatcher;
use kube::{Api, Client, Resource, core::PartialObjectMeta};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::source::{Change, Event};
use slim::SlimPod;

/// Events that wait for the index; then the watches wait.
const QUEUE: usize = 1024;
/// Most events taken at once.
const BATCH: usize = 512;
/// Label of endpoint slices that Kubernetes keeps for services with a selector.
const NOT_FROM_SELECTORS: &str =
    "endpointslice.kubernetes.io/managed-by!=endpointslice-controller.k8s.io";

/// What a watch tells the index.
#[derive(Debug)]
enum Told {
    Event(Event),
    /// Every object of the kind that existed at the start was told.
    Listed(Kind),
}

/// Everything that is watched.
#[derive(Debug)]
pub struct Informers {
    told: mpsc::Receiver<Told>,
    waiting: BTreeSet<Kind>,
}

impl Informers {
    /// Begins to watch; ends with the drain.
    pub fn start(client: &Client, drain: &DrainWatcher) -> Self {
        let (sender, told) = mpsc::channel(QUEUE);
        let teller = Teller {
            sender,
            drain: drain.clone(),
        };
        let mut waiting = BTreeSet::new();
        let mut kind = |kind| {
            waiting.insert(kind);
            kind
        };
        let all = watch::config();
        teller.follow(
            kind(Kind::Namespace),
            Api::<PartialObjectMeta<Namespace>>::all(client.clone()),
            all.clone(),
            |namespace| {
                let metadata = slim::metadata(&namespace.metadata);
                Namespace {
                    metadata,
                    ..Namespace::default()
                }
                .into()
            },
        );
        teller.follow(
            kind(Kind::Node),
            Api::<PartialObjectMeta<Node>>::all(client.clone()),
            all.clone(),
            |node| {
                let metadata = slim::metadata(&node.metadata);
                Node {
                    metadata,
                    ..Node::default()
                }
                .into()
            },
        );
        teller.follow(
            kind(Kind::Pod),
            Api::<SlimPod>::all(client.clone()),
            all.clone(),
            |pod| pod.0.clone().into(),
        );
        teller.follow(
            kind(Kind::Service),
            Api::<Service>::all(client.clone()),
            all.clone(),
            |service| {
                let metadata = slim::metadata(&service.metadata);
                Service {
                    metadata,
                    spec: service.spec.clone(),
                    status: service.status.clone(),
                }
                .into()
            },
        );
        teller.follow(
            kind(Kind::EndpointSlice),
            Api::<EndpointSlice>::all(client.clone()),
            all.labels(NOT_FROM_SELECTORS),
            |slice| {
                let metadata = slim::metadata(&slice.metadata);
                EndpointSlice {
                    metadata,
                    ..slice.clone()
                }
                .into()
            },
        );
        let changed = definitions::follow(client, drain);
        for (of, plural) in custom::KINDS {
            let follower = custom::Follower {
                client: client.clone(),
                kind: kind(*of),
                plural,
                teller: teller.clone(),
                definitions: changed.clone(),
            };
            let mut drain = drain.clone();
            ambit_rt::spawn("informer", async move {
                tokio::select! {
                    () = follower.run() => {}
                    _ = drain.started() => {}
                }
            });
        }
        Self { told, waiting }
    }

    /// Waits for what happened next; `None` if nothing can happen any more.
    pub async fn changed(&mut self) -> Option<Change> {
        let mut batch = Vec::new();
        if self.told.recv_many(&mut batch, BATCH).await == 0 {
            return None;
        }
        let mut change = Change::default();
        for told in batch {
            match told {
                Told::Event(event) => change.events.push(event),
                Told::Listed(kind) => {
                    if self.waiting.remove(&kind) && self.waiting.is_empty() {
                        tracing::info!("every object of the cluster is read");
                    }
                }
            }
        }
        change.complete = self.waiting.is_empty();
        Some(change)
    }
}

/// The watches' way to the index.
#[derive(Clone)]
struct Teller {
    sender: mpsc::Sender<Told>,
    drain: DrainWatcher,
}

impl fmt::Debug for Teller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Teller")
    }
}

impl Teller {
    /// Follows all objects of a kind in a task of its own.
    fn follow<K>(
        &self,
        kind: Kind,
        api: Api<K>,
        config: kube::runtime::watcher::Config,
        read: impl Fn(&K) -> Object + Send + Sync + 'static,
    ) where
        K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + 'static,
    {
        let teller = self.clone();
        let mut drain = self.drain.clone();
        ambit_rt::spawn("informer", async move {
            let mut watch =
                Watch::new(kind.as_str(), api, config, move |object| Some(read(object)));
            let tell = async {
                loop {
                    let told = match watch.next().await {
                        WatchEvent::Object(_, object) => Told::Event(Event::Applied {
                            object,
                            origin: None,
                        }),
                        WatchEvent::Gone(id) => Told::Event(Event::Deleted(key(kind, &id))),
                        WatchEvent::Listed => Told::Listed(kind),
                        WatchEvent::Listing | WatchEvent::Away(_) => continue,
                    };
                    if !teller.tell(told).await {
                        return;
                    }
                }
            };
            tokio::select! {
                () = tell => {}
                _ = drain.started() => {}
            }
        });
    }

    /// False when nobody listens any more.
    async fn tell(&self, told: Told) -> bool {
        self.sender.send(told).await.is_ok()
    }
}

fn key(kind: Kind, id: &ObjectId) -> ObjectKey {
    ObjectKey::new(kind, &*id.namespace, &*id.name)
}
