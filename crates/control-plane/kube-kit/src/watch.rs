//! Watches all objects of a kind, through outages of the API server.
//!
//! Wraps `kube`'s watcher: each object is reduced at once to the value that its reader needs;
//! objects deleted while no watch was open are reported as gone after the next listing; and an
//! outage of the API server, however long, does not change the known objects. The bookkeeping
//! ([`KnownObjects`]) is pure.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    time::Duration,
};

use ambit_rt::{Backoff, ErrorChain};
use futures_util::{StreamExt as _, stream::BoxStream};
use kube::{
    Api, Resource,
    runtime::watcher::{self, Event},
};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

/// First and longest backoff after a failed list or watch.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// Page size of lists from the API server.
const PAGE_SIZE: u32 = 100;
/// Maximum duration of a watch in seconds: a silently broken connection is detected no later.
const WATCH_TIMEOUT_SECONDS: u32 = 120;
/// Timeout of one page of a list.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);

/// Name and uid of an object; the uid distinguishes it from others of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    /// Namespace of the object; empty for cluster-scoped objects.
    pub namespace: Box<str>,
    /// Name of the object.
    pub name: Box<str>,
    /// UID of the object.
    pub uid: Box<str>,
}

impl ObjectId {
    /// Returns the ID of an object from the API server.
    pub fn from_object<K: Resource>(object: &K) -> Self {
        let text = |value: &Option<String>| value.as_deref().unwrap_or_default().into();
        let meta = object.meta();
        Self {
            namespace: text(&meta.namespace),
            name: text(&meta.name),
            uid: text(&meta.uid),
        }
    }
}

/// Event of a watch. After the first complete list the reader knows every object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent<V> {
    /// A list starts: every object is reported again before the list is complete. A failed list starts again.
    ListStarted,
    /// An object is new, has changed, or is part of a list.
    Object(ObjectId, V),
    /// An object was deleted, or is no longer of interest. Reported exactly once for every object
    /// reported, also if it was deleted during an outage of the API server or replaced by another
    /// of the same name.
    Removed(ObjectId),
    /// The list is complete; objects that it did not contain have been reported as gone.
    ListCompleted,
    /// The API server cannot be reached, with the reason. Known objects remain; a new list follows when it is reachable
    /// again. Reported once per outage.
    Unavailable(String),
}

/// Returns the watch configuration, which bounds the size of pages and the duration of watches.
pub fn watcher_config() -> watcher::Config {
    watcher::Config::default()
        .page_size(PAGE_SIZE)
        .timeout(WATCH_TIMEOUT_SECONDS)
}

type Stream<K> = BoxStream<'static, watcher::Result<Event<K>>>;
type OpenStream<K> = Box<dyn Fn() -> Stream<K> + Send + Sync>;
type Projection<K, V> = Box<dyn Fn(&K) -> Option<V> + Send + Sync>;

/// Watch of the objects of a kind that match a selector, converted to the reader's type.
pub struct ObjectWatch<K, V> {
    /// Name of the kind, for the log.
    resource_name: &'static str,
    open_stream: OpenStream<K>,
    project: Projection<K, V>,
    stream: Stream<K>,
    known: KnownObjects,
    pending: VecDeque<WatchEvent<V>>,
    is_listing: bool,
    is_unavailable: bool,
    backoff: Backoff,
    retry_at: Option<Instant>,
}

impl<K, V> fmt::Debug for ObjectWatch<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectWatch")
            .field("what", &self.resource_name)
            .field("objects", &self.known.objects.len())
            .field("away", &self.is_unavailable)
            .finish_non_exhaustive()
    }
}

impl<K, V> ObjectWatch<K, V>
where
    K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + 'static,
{
    /// Watches through `api` the objects that `config` selects; start from [`watcher_config()`]. `project` reduces an
    /// object to the reader's value, or to `None` if the reader does not need it. For labels and annotations alone, an
    /// `Api<PartialObjectMeta<K>>` transfers only metadata.
    pub fn new(
        what: &'static str,
        api: Api<K>,
        config: watcher::Config,
        project: impl Fn(&K) -> Option<V> + Send + Sync + 'static,
    ) -> Self {
        let open = move || watcher::watcher(api.clone(), config.clone()).boxed();
        Self {
            resource_name: what,
            stream: open(),
            open_stream: Box::new(open),
            project: Box::new(project),
            known: KnownObjects::default(),
            pending: VecDeque::new(),
            is_listing: false,
            is_unavailable: false,
            backoff: Backoff::new(RETRY_BACKOFF.0, RETRY_BACKOFF.1, 0.2),
            retry_at: None,
        }
    }

    /// Waits for the next event; the stream never ends. Cancelling the future loses no event.
    pub async fn next(&mut self) -> WatchEvent<V> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return event;
            }
            if let Some(until) = self.retry_at {
                tokio::time::sleep_until(until).await;
                self.retry_at = None;
            }
            let limit = if self.is_listing {
                LIST_TIMEOUT
            } else {
                Duration::MAX
            };
            match tokio::time::timeout(limit, self.stream.next()).await {
                Ok(Some(Ok(event))) => self.handle_event(event),
                Ok(Some(Err(error))) => self.handle_error(&error),
                Ok(None) => self.restart("the watch ended".to_owned()),
                Err(_) => self.restart(format!("no answer within {LIST_TIMEOUT:?}")),
            }
        }
    }

    fn handle_event(&mut self, event: Event<K>) {
        if !matches!(event, Event::Init) {
            self.backoff.reset();
        }
        match event {
            Event::Init => {
                self.is_listing = true;
                self.known.begin_listing();
                self.pending.push_back(WatchEvent::ListStarted);
            }
            Event::InitApply(object) | Event::Apply(object) => self.handle_object(&object),
            Event::Delete(object) => {
                let id = ObjectId::from_object(&object);
                if self.known.remove(&id) {
                    self.pending.push_back(WatchEvent::Removed(id));
                }
            }
            Event::InitDone => {
                self.is_listing = false;
                let gone = self.known.end_listing();
                self.pending
                    .extend(gone.into_iter().map(WatchEvent::Removed));
                self.pending.push_back(WatchEvent::ListCompleted);
                if std::mem::replace(&mut self.is_unavailable, false) {
                    tracing::info!(
                        what = self.resource_name,
                        "the Kubernetes API answers again"
                    );
                }
            }
        }
    }

    fn handle_object(&mut self, object: &K) {
        let id = ObjectId::from_object(object);
        let Some(value) = (self.project)(object) else {
            if self.known.remove(&id) {
                self.pending.push_back(WatchEvent::Removed(id));
            }
            return;
        };
        let before = self.known.insert(&id);
        self.pending.extend(before.map(WatchEvent::Removed));
        self.pending.push_back(WatchEvent::Object(id, value));
    }

    fn handle_error(&mut self, error: &watcher::Error) {
        match error {
            // The API server responds that our resource version is too old. kube lists again by
            // itself only if that arrives as an event of the watch.
            watcher::Error::WatchStartFailed(kube::Error::Api(status))
            | watcher::Error::WatchFailed(kube::Error::Api(status))
                if status.code == 410 =>
            {
                self.relist();
            }
            watcher::Error::WatchError(status) if status.code == 410 => self.back_off(),
            // The API server rejects the request: kube would repeat it forever.
            watcher::Error::WatchFailed(kube::Error::Api(_)) => {
                self.restart(ErrorChain(error).to_string());
            }
            // The connection broke: the watch resumes from its last version.
            watcher::Error::WatchFailed(_) | watcher::Error::WatchError(_) => {
                tracing::debug!(what = self.resource_name, %error, "a watch of the Kubernetes API broke");
                self.back_off();
            }
            // The store may have been restored from a backup, with versions older than ours: a
            // watch from our version would report nothing for long.
            _ => self.restart(ErrorChain(error).to_string()),
        }
    }

    fn restart(&mut self, why: String) {
        if !std::mem::replace(&mut self.is_unavailable, true) {
            let what = self.resource_name;
            tracing::warn!(
                what,
                error = why,
                "the Kubernetes API is unavailable; known objects are kept"
            );
            self.pending.push_back(WatchEvent::Unavailable(why));
        }
        self.relist();
    }

    fn relist(&mut self) {
        self.is_listing = false;
        self.stream = (self.open_stream)();
        self.back_off();
    }

    fn back_off(&mut self) {
        let delay = self.backoff.next_delay(rand::random());
        self.retry_at = Some(Instant::now() + delay);
    }
}

/// Objects that were reported to the reader, by which deletions are detected. Does no IO.
#[derive(Debug, Default)]
struct KnownObjects {
    objects: HashMap<(Box<str>, Box<str>), KnownObject>,
    /// Sequence number of the current list.
    list_number: u32,
}

#[derive(Debug)]
struct KnownObject {
    uid: Box<str>,
    /// Sequence number of the list that was current when the object was last reported.
    list_number: u32,
}

impl KnownObjects {
    fn begin_listing(&mut self) {
        self.list_number = self.list_number.wrapping_add(1);
    }

    /// Records an object; returns the earlier object of the same name, if there is one.
    fn insert(&mut self, id: &ObjectId) -> Option<ObjectId> {
        let entry = KnownObject {
            uid: id.uid.clone(),
            list_number: self.list_number,
        };
        let key = (id.namespace.clone(), id.name.clone());
        let before = self.objects.insert(key, entry)?;
        (before.uid != id.uid).then(|| ObjectId {
            uid: before.uid,
            ..id.clone()
        })
    }

    /// Removes an object. Returns whether an object with this UID was known.
    fn remove(&mut self, id: &ObjectId) -> bool {
        let key = (id.namespace.clone(), id.name.clone());
        let is_it = self.objects.get(&key).is_some_and(|of| of.uid == id.uid);
        if is_it {
            self.objects.remove(&key);
        }
        is_it
    }

    /// Removes and returns the objects that the finished list did not contain.
    fn end_listing(&mut self) -> Vec<ObjectId> {
        let round = self.list_number;
        let gone = self
            .objects
            .extract_if(|_, entry| entry.list_number != round);
        gone.map(|((namespace, name), KnownObject { uid, .. })| ObjectId {
            namespace,
            name,
            uid,
        })
        .collect()
    }
}

#[cfg(test)]
mod tests;
