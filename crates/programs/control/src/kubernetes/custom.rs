//! Watches custom kinds, whose CRDs may be missing, be created or deleted later, or have an older
//! version.
//!
//! Objects are parsed as plain JSON, so that an invalid object never hides the others.

use std::{collections::BTreeSet, time::Duration};

use ambit_k8s_api::{BUNDLE_VERSION, InvalidObject, Kind, Object, ObjectEvent, ObjectKey};
use ambit_kube_kit::watch::{ObjectWatch, WatchEvent};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, core::DynamicObject, discovery::ApiResource, runtime::watcher};
use serde_json::{Value, json};
use tokio::sync::watch as signal;

use super::{
    definitions::{crd_name, custom_resource},
    slim_object,
    updates::{Update, UpdateSender, object_key},
};

/// API versions that can be read, newest first. The fields that the mesh reads are the same in all.
const READABLE_VERSIONS: &[&str] = &["v1", "v1beta1", "v1alpha3", "v1alpha2", "v1alpha1"];
/// First and longest interval of checking for a kind's CRD; short again after a change of CRDs, since the API server
/// needs a moment to serve a new kind.
const POLL_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// Delay after which a missing CRD is checked again before it is reported as absent.
const CONFIRMATION_DELAY: Duration = Duration::from_secs(1);

/// Follows the CRD and the objects of one custom kind.
pub(super) struct CustomKindFollower {
    pub(super) client: Client,
    pub(super) kind: Kind,
    pub(super) config: watcher::Config,
    pub(super) updates: UpdateSender,
    /// Counter that grows whenever a CRD of the cluster changes.
    pub(super) crd_changes: signal::Receiver<u64>,
}

type ReadResult = Result<Object, (InvalidObject, Box<Value>)>;

/// State of a custom kind's CRD in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CrdState {
    /// The CRD serves this API version.
    Served(&'static str),
    /// The CRD exists, but serves no version that the control plane reads.
    NoReadableVersion,
    /// The CRD does not exist.
    Absent,
}

impl CustomKindFollower {
    /// Follows the kind until the receiver of updates is dropped.
    pub(super) async fn run(mut self) {
        let mut pause = POLL_BACKOFF.0;
        let mut absence_is_logged = false;
        let mut known = BTreeSet::new();
        loop {
            self.crd_changes.mark_unchanged();
            let definition = self.confirmed_crd_state().await;
            if let Ok(definition) = &definition
                && !self.report_crd_problem(*definition).await
            {
                return;
            }
            match definition {
                Ok(CrdState::Served(version)) => {
                    if !self.watch_objects(version, &mut known).await {
                        return;
                    }
                    (pause, absence_is_logged) = (POLL_BACKOFF.0, false);
                }
                Ok(CrdState::NoReadableVersion) => {
                    tracing::error!(kind = %self.kind, versions = ?READABLE_VERSIONS, "the definition of this kind serves no version that can be read: its objects are not followed; serve one of these");
                }
                Ok(CrdState::Absent) => {
                    if !absence_is_logged {
                        tracing::info!(kind = %self.kind, "the cluster has no such kind; waiting for its definition");
                        absence_is_logged = true;
                    }
                    // The deletion of a CRD deletes all objects of the kind.
                    let gone = std::mem::take(&mut known);
                    if !self.send_deletions(gone).await
                        || !self.updates.send(Update::KindListed(self.kind)).await
                    {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(kind = %self.kind, %error, "cannot get the definition of this kind");
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(POLL_BACKOFF.1),
                Ok(()) = self.crd_changes.changed() => pause = POLL_BACKOFF.0,
            }
        }
    }

    /// Sends the reason why the kind cannot be followed, if there is one; returns false if the receiver is dropped.
    async fn report_crd_problem(&self, definition: CrdState) -> bool {
        let (kind, wanted) = (self.kind, self.kind.version());
        let is_unread = kind.definition() == ambit_k8s_api::Definition::PresenceOnly;
        let problem = match definition {
            CrdState::NoReadableVersion => Some(format!(
                "{kind}: the definition serves none of the versions {}: its objects are not followed; serve one of these",
                READABLE_VERSIONS.join(", ")
            )),
            CrdState::Served(version) if version != wanted && !is_unread => Some(format!(
                "{kind}: the definition does not serve the version {wanted}: install a newer one, or fields that it does \
                 not know have no effect"
            )),
            CrdState::Served(_) | CrdState::Absent => None,
        };
        let update = Update::CrdProblem(kind, problem);
        self.updates.send(update).await
    }

    /// Returns the state of the kind's CRD. Policies depend on it: it counts as absent only if a request for the CRD
    /// itself reports so twice, since lists of served resources are incomplete now and then.
    async fn confirmed_crd_state(&self) -> Result<CrdState, kube::Error> {
        let first = self.read_crd_state().await?;
        if first != CrdState::Absent {
            return Ok(first);
        }
        tokio::time::sleep(CONFIRMATION_DELAY).await;
        self.read_crd_state().await
    }

    async fn read_crd_state(&self) -> Result<CrdState, kube::Error> {
        let resource = ApiResource::erase::<CustomResourceDefinition>(&());
        let api = Api::<DynamicObject>::all_with(self.client.clone(), &resource);
        let name = crd_name(self.kind);
        let Some(definition) = api.get_opt(&name).await? else {
            return Ok(CrdState::Absent);
        };
        let versions = definition.data.pointer("/spec/versions");
        let versions = versions.and_then(Value::as_array);
        let is_served = |version: &&&str| {
            versions.into_iter().flatten().any(|one| {
                one.get("name").and_then(Value::as_str) == Some(**version)
                    && one.get("served").and_then(Value::as_bool) == Some(true)
            })
        };
        let best = READABLE_VERSIONS.iter().find(is_served);
        let is_unread = self.kind.definition() == ambit_k8s_api::Definition::PresenceOnly;
        let wanted = self.kind.version();
        if best.is_some_and(|best| *best != wanted) && !is_unread {
            let annotations = definition.metadata.annotations.as_ref();
            let bundle = annotations.and_then(|all| all.get(BUNDLE_VERSION));
            tracing::warn!(kind = %self.kind, wanted, bundle, "the definition of this kind does not serve the wanted version: install a newer one, or fields that it does not know have no effect");
        }
        Ok(best.map_or(CrdState::NoReadableVersion, |version| {
            CrdState::Served(version)
        }))
    }

    /// Watches objects until the kind is no longer served in this version (returns true) or the receiver is dropped
    /// (returns false). `known` has the objects that were reported.
    async fn watch_objects(&self, version: &'static str, known: &mut BTreeSet<ObjectKey>) -> bool {
        let kind = self.kind;
        let resource = custom_resource(kind, version);
        let api = Api::<DynamicObject>::all_with(self.client.clone(), &resource);
        let api_version = resource.api_version.clone();
        let read = move |object: &DynamicObject| Some(parse_object(kind, &api_version, object));
        let mut watch = ObjectWatch::new(kind.as_str(), api, self.config.clone(), read);
        // Objects of an earlier watch that the listing has not contained yet.
        let mut unseen = known.clone();
        let mut definitions = self.crd_changes.clone();
        loop {
            let next = tokio::select! {
                event = watch.next() => Some(event),
                Ok(()) = definitions.changed() => None,
            };
            let update = match next {
                Some(WatchEvent::Object(id, read)) => {
                    let key = object_key(kind, &id);
                    unseen.remove(&key);
                    known.insert(key.clone());
                    Update::Object(to_event(key, read))
                }
                Some(WatchEvent::Removed(id)) => {
                    let key = object_key(kind, &id);
                    unseen.remove(&key);
                    known.remove(&key);
                    Update::Object(ObjectEvent::Deleted(key))
                }
                Some(WatchEvent::ListCompleted) => {
                    let gone = std::mem::take(&mut unseen);
                    known.retain(|key| !gone.contains(key));
                    if !self.send_deletions(gone).await {
                        return false;
                    }
                    Update::KindListed(kind)
                }
                Some(WatchEvent::ListStarted) => continue,
                Some(WatchEvent::Unavailable(_)) | None => match self.confirmed_crd_state().await {
                    // The server may only be unavailable, and its last objects stay.
                    Err(_) => continue,
                    Ok(CrdState::Served(now)) if now == version => continue,
                    Ok(_) => return true,
                },
            };
            if !self.updates.send(update).await {
                return false;
            }
        }
    }

    /// Reports that these objects were deleted; returns false if the receiver is dropped.
    async fn send_deletions(&self, gone: BTreeSet<ObjectKey>) -> bool {
        for key in gone {
            if !self
                .updates
                .send(Update::Object(ObjectEvent::Deleted(key)))
                .await
            {
                return false;
            }
        }
        true
    }
}

fn to_event(key: ObjectKey, read: ReadResult) -> ObjectEvent {
    match read {
        Ok(object) => ObjectEvent::Applied {
            object,
            origin: None,
        },
        Err((error, value)) => ObjectEvent::Invalid { key, error, value },
    }
}

fn parse_object(kind: Kind, api_version: &str, object: &DynamicObject) -> ReadResult {
    let mut value = object.data.clone();
    if let Some(fields) = value.as_object_mut() {
        // Items of a list lack their type.
        fields.insert("apiVersion".to_owned(), api_version.into());
        fields.insert("kind".to_owned(), kind.as_str().into());
        let mut metadata = object.metadata.clone();
        slim_object::strip_metadata(&mut metadata);
        fields.insert("metadata".to_owned(), json!(metadata));
    }
    Object::from_value(kind, &value).map_err(|error| (error, Box::new(value)))
}
