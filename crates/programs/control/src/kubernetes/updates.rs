//! Updates that watches send to the index.

use std::fmt;

use ambit_k8s_api::{Kind, Object, ObjectEvent, ObjectKey};
use ambit_kube_kit::watch::{ObjectId, ObjectWatch, WatchEvent};
use ambit_rt::DrainWatcher;
use kube::{Api, Resource, runtime::watcher};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

/// Update that a watch sends to the index.
#[derive(Debug)]
pub(super) enum Update {
    Object(ObjectEvent),
    /// The initial list of the kind is complete.
    KindListed(Kind),
    /// Reason why the kind's CRD cannot be followed; `None` if it can be followed again.
    CrdProblem(Kind, Option<String>),
}

/// Sender of a watch's updates to the index.
#[derive(Clone)]
pub(super) struct UpdateSender {
    pub(super) sender: mpsc::Sender<Update>,
    pub(super) drain: DrainWatcher,
}

impl fmt::Debug for UpdateSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UpdateSender")
    }
}

impl UpdateSender {
    /// Watches all objects of a kind in a separate task.
    pub(super) fn watch_kind<K>(
        &self,
        kind: Kind,
        api: Api<K>,
        config: watcher::Config,
        read: impl Fn(&K) -> Object + Send + Sync + 'static,
    ) where
        K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + 'static,
    {
        let updates = self.clone();
        let mut drain = self.drain.clone();
        ambit_rt::spawn("informer", async move {
            let mut watch =
                ObjectWatch::new(kind.as_str(), api, config, move |object| Some(read(object)));
            let follow = async {
                loop {
                    let update = match watch.next().await {
                        WatchEvent::Object(_, object) => Update::Object(ObjectEvent::Applied {
                            object,
                            origin: None,
                        }),
                        WatchEvent::Removed(id) => {
                            Update::Object(ObjectEvent::Deleted(object_key(kind, &id)))
                        }
                        WatchEvent::ListCompleted => Update::KindListed(kind),
                        WatchEvent::ListStarted | WatchEvent::Unavailable(_) => continue,
                    };
                    if !updates.send(update).await {
                        return;
                    }
                }
            };
            tokio::select! {
                () = follow => {}
                _ = drain.wait_until_started() => {}
            }
        });
    }

    /// Sends an update; returns false if the receiver is dropped.
    pub(super) async fn send(&self, update: Update) -> bool {
        self.sender.send(update).await.is_ok()
    }
}

pub(super) fn object_key(kind: Kind, id: &ObjectId) -> ObjectKey {
    ObjectKey::new(kind, &*id.namespace, &*id.name)
}
