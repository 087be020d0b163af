//! Istio's kinds, whose definitions may be missing, come later, go, or be of an older version.
//!
//! They are read as plain JSON, so that one object that cannot be read never hides the others.

use std::{collections::BTreeSet, time::Duration};

use ambit_k8s_api::{InvalidObject, Kind, Object, ObjectKey};
use ambit_kube_kit::watch::{self, Watch, WatchEvent};
use kube::{Api, Client, core::DynamicObject, discovery::ApiResource};
use serde_json::{Value, json};
use tokio::sync::watch as signal;

use super::{Teller, Told, key, slim};
use crate::source::Event;

/// The kinds and their names in paths.
pub(super) const KINDS: &[(Kind, &str)] = &[
    (Kind::ServiceEntry, "serviceentries"),
    (Kind::WorkloadEntry, "workloadentries"),
    (Kind::AuthorizationPolicy, "authorizationpolicies"),
    (Kind::PeerAuthentication, "peerauthentications"),
];

/// Versions that are read, the best first. They do not differ in what the mesh reads.
const VERSIONS: &[&str] = &["v1", "v1beta1"];
/// First and longest pause between looks for a definition; after news of one it is short again,
/// because the server takes a moment to serve it.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// Follows one kind.
pub(super) struct Follower {
    pub(super) client: Client,
    pub(super) kind: Kind,
    pub(super) plural: &'static str,
    pub(super) teller: Teller,
    /// Changes with the definitions of the cluster.
    pub(super) definitions: signal::Receiver<u64>,
}

type Read = Result<Object, (InvalidObject, Box<Value>)>;

impl Follower {
    /// Runs until nobody listens.
    pub(super) async fn run(mut self) {
        let mut pause = PAUSE.0;
        let mut absent_told = false;
        loop {
            self.definitions.mark_unchanged();
            match self.served_version().await {
                Ok(Some(version)) => {
                    if !self.follow(version).await {
                        return;
                    }
                    (pause, absent_told) = (PAUSE.0, false);
                }
                Ok(None) => {
                    if !absent_told {
                        tracing::info!(kind = %self.kind, "the cluster has no such kind; waiting for its definition");
                        absent_told = true;
                    }
                    if !self.teller.tell(Told::Listed(self.kind)).await {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(kind = %self.kind, %error, "cannot ask which kinds the cluster has");
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(PAUSE.1),
                Ok(()) = self.definitions.changed() => pause = PAUSE.0,
            }
        }
    }

    /// The best version that the cluster serves; `None` if it does not know the kind.
    async fn served_version(&self) -> Result<Option<&'static str>, kube::Error> {
        let groups = self.client.list_api_groups().await?;
        let group = groups
            .groups
            .iter()
            .find(|one| one.name == self.kind.group());
        for version in VERSIONS {
            let served = group.is_some_and(|group| {
                let mut versions = group.versions.iter();
                versions.any(|one| one.version == *version)
            });
            if !served {
                continue;
            }
            let api = format!("{}/{version}", self.kind.group());
            let list = self.client.list_api_group_resources(&api).await?;
            if list.resources.iter().any(|one| one.name == self.plural) {
                return Ok(Some(version));
            }
        }
        Ok(None)
    }

    /// Watches until the definition is gone (true) or nobody listens (false).
    async fn follow(&self, version: &str) -> bool {
        let kind = self.kind;
        let resource = ApiResource {
            group: kind.group().to_owned(),
            version: version.to_owned(),
            api_version: format!("{}/{version}", kind.group()),
            kind: kind.as_str().to_owned(),
            plural: self.plural.to_owned(),
        };
        let api = Api::<DynamicObject>::all_with(self.client.clone(), &resource);
        let api_version = resource.api_version.clone();
        let read = move |object: &DynamicObject| Some(read(kind, &api_version, object));
        let mut watch = Watch::new(kind.as_str(), api, watch::config(), read);
        let mut there = BTreeSet::new();
        loop {
            let told = match watch.next().await {
                WatchEvent::Object(id, read) => {
                    let key = key(kind, &id);
                    there.insert(key.clone());
                    Told::Event(event(key, read))
                }
                WatchEvent::Gone(id) => {
                    let key = key(kind, &id);
                    there.remove(&key);
                    Told::Event(Event::Deleted(key))
                }
                WatchEvent::Listed => Told::Listed(kind),
                WatchEvent::Listing => continue,
                WatchEvent::Away(_) => {
                    // The server may only be away. A kind that is gone took its objects with it.
                    if !matches!(self.served_version().await, Ok(None)) {
                        continue;
                    }
                    for key in std::mem::take(&mut there) {
                        if !self.teller.tell(Told::Event(Event::Deleted(key))).await {
                            return false;
                        }
                    }
                    return true;
                }
            };
            if !self.teller.tell(told).await {
                return false;
            }
        }
    }
}

fn event(key: ObjectKey, read: Read) -> Event {
    match read {
        Ok(object) => Event::Applied {
            object,
            origin: None,
        },
        Err((error, value)) => Event::Refused { key, error, value },
    }
}

fn read(kind: Kind, api_version: &str, object: &DynamicObject) -> Read {
    let mut value = object.data.clone();
    if let Some(fields) = value.as_object_mut() {
        // Items of a listing do not carry them.
        fields.insert("apiVersion".to_owned(), api_version.into());
        fields.insert("kind".to_owned(), kind.as_str().into());
        fields.insert(
            "metadata".to_owned(),
            json!(slim::metadata(&object.metadata)),
        );
    }
    Object::from_value(kind, &value).map_err(|error| (error, Box::new(value)))
}
