//! Processes a push: decodes its resources one at a time, and passes the updates to the handler in small batches.
//!
//! A resource that cannot be decoded in full is rejected, and its last good version remains in force. For a policy,
//! that version may allow connections that the new one denies, so a deny-all substitute replaces it at once, see
//! [`InvalidPolicyMode`].

use std::time::Instant;

use ambit_model::{ArcStr, Authorization, Service, WaypointRecord, WaypointRecordType, Workload};
use ambit_wire::{
    decode::{
        self, AddressRecord, DecodeError, LazyDeltaResponse, LazyResource, RecordDecodeError,
        Substitute,
    },
    encode::ADDRESS_TYPE_URL,
    records,
};
use ambit_xds_core::{Effect, Push, StreamEnding};
use bytes::Bytes;

use crate::role::{ResourceType, Role};

/// Maximum number of updates in a batch. A handler that applies a batch under a lock holds it for some tens of
/// microseconds.
const MAX_BATCH_RECORDS: usize = 64;
/// Number of resources after which the push yields to other tasks of the thread.
const RECORDS_BETWEEN_YIELDS: usize = 1024;

/// Options for decoding the resources of a push.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecodeOptions {
    pub(crate) role: Role,
    pub(crate) invalid_policies: InvalidPolicyMode,
}

/// How a policy that cannot be decoded in full is handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InvalidPolicyMode {
    /// Deny every connection in the policy's scope, until an understood version is received or the policy is removed.
    #[default]
    Deny,
    /// Keep the last good version in force, if there is one.
    KeepLastGood,
}

/// Change of the mesh state that the control plane published.
#[derive(Clone, Debug, PartialEq)]
pub enum MeshUpdate {
    /// Addition or change of a workload.
    Workload(Box<Workload>),
    /// Addition or change of a service.
    Service(Box<Service>),
    /// Addition or change of a policy, or the fail-closed substitute that replaces it
    /// ([`Authorization::invalid_policies`]).
    Policy(Authorization),
    /// Removal of a workload or service by its name in WDS.
    AddressRemoved(ArcStr),
    /// Removal of a policy by its name (`namespace/name`).
    PolicyRemoved(ArcStr),
    /// Addition, change or removal of a waypoint record.
    Waypoint(WaypointUpdate),
}

/// Change of a waypoint record.
#[derive(Clone, Debug, PartialEq)]
pub enum WaypointUpdate {
    /// Addition or change of a record, or the substitute that replaces it: resource name and contents.
    Upserted(ArcStr, WaypointRecord),
    /// Removal of a record by type and resource name.
    Removed(WaypointRecordType, ArcStr),
}

/// Entry of the warm-start cache, for [`crate::Client::restore`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CachedResource {
    /// Resource that was accepted, as received.
    Resource(Bytes),
    /// Name of a resource that was removed.
    Removed(ArcStr),
}

/// Receiver of the changes of the mesh state that the control plane publishes.
pub trait UpdateHandler: Send + 'static {
    /// Applies a batch of updates, and empties it.
    fn apply(&self, batch: &mut Vec<MeshUpdate>);

    /// Reports the end of a push of workloads and services. Unless they are requested on demand, the handler now has
    /// all that exist, except rejected ones.
    fn on_addresses_synced(&self) {}

    /// Reports the end of a push of policies: the handler now has all policies that exist, except rejected ones.
    fn on_policies_synced(&self) {}

    /// Reports the end of a push of a waypoint record type: the handler now has all records that exist, except rejected
    /// ones.
    fn on_waypoint_records_synced(&self, _of: WaypointRecordType) {}

    /// Stores an accepted or removed resource in the warm-start cache. Resources can later be restored in the order of
    /// these calls.
    fn on_resource_accepted(&self, _type_url: &str, _name: &str, _cached: &CachedResource) {}

    /// Reports the end of a push for the warm-start cache. If `complete`, no resource of the push was rejected, so that
    /// the cache has the whole type.
    fn on_push_cached(&self, _type_url: &str, _complete: bool) {}

    /// Reports that every wildcard subscription has been received once without a rejection.
    fn on_ready(&self) {}

    /// Reports that a workload or service has `count` unknown fields, which are ignored.
    fn on_unknown_fields(&self, _type_url: &str, _count: u64) {}

    /// Reports a received message of a resource type and its size in bytes, for the metrics `istio_xds_message_*`.
    fn on_message_received(&self, _type_url: &str, _bytes: usize) {}

    /// Reports the end of a stream or of an attempt to open one, for the metric
    /// `istio_xds_connection_terminations_total`.
    fn on_stream_ended(&self, _ending: StreamEnding) {}
}

/// Processes one push. Returns the effects of acknowledging or rejecting it.
pub(crate) async fn apply_response<H: UpdateHandler>(
    client: &mut ambit_xds_core::Client,
    handler: &H,
    options: DecodeOptions,
    response: LazyDeltaResponse,
) -> Vec<Effect> {
    let LazyDeltaResponse {
        resources,
        type_url,
        nonce,
        removed_resources,
    } = response;
    let push = client.begin_push(&type_url, nonce);
    let cached_type = push.kind().map(|_| type_url.as_str());
    let mut batch = UpdateBatch::new(push, handler, options, cached_type);
    let kind = batch.kind();
    for (index, bytes) in resources.into_iter().enumerate() {
        batch.apply_resource(kind, index, bytes);
        if index % RECORDS_BETWEEN_YIELDS == RECORDS_BETWEEN_YIELDS - 1 {
            tokio::task::yield_now().await;
        }
    }
    batch.flush();
    let now = Instant::now();
    for name in &removed_resources {
        batch.remove_resource(kind, name.as_str().into(), now);
    }
    batch.flush();
    if let Some(type_url) = cached_type {
        handler.on_push_cached(type_url, !batch.push.has_rejections());
    }
    report_synced(kind, handler);
    batch.push.finish()
}

/// Applies the cached resources of a type like a push, without a server.
pub(crate) fn restore<H: UpdateHandler>(
    client: &mut ambit_xds_core::Client,
    handler: &H,
    options: DecodeOptions,
    type_url: &str,
    cached: impl Iterator<Item = CachedResource>,
) -> Vec<Effect> {
    let push = client.begin_push(type_url, String::new());
    let mut batch = UpdateBatch::new(push, handler, options, None);
    let kind = batch.kind();
    let now = Instant::now();
    for (index, cached) in cached.enumerate() {
        match cached {
            CachedResource::Resource(bytes) => batch.apply_resource(kind, index, bytes),
            CachedResource::Removed(name) => batch.remove_resource(kind, name, now),
        }
    }
    batch.flush();
    report_synced(kind, handler);
    batch.push.finish()
}

fn report_synced<H: UpdateHandler>(kind: Option<ResourceType>, handler: &H) {
    match kind {
        Some(ResourceType::Address) => handler.on_addresses_synced(),
        Some(ResourceType::Policy) => handler.on_policies_synced(),
        Some(ResourceType::Waypoint(of)) => handler.on_waypoint_records_synced(of),
        None => {}
    }
}

struct UpdateBatch<'a, H> {
    push: Push<'a>,
    handler: &'a H,
    options: DecodeOptions,
    updates: Vec<MeshUpdate>,
    accepted: Vec<AcceptedResource>,
    /// Type URL of the push, if its resources are to be cached.
    cached_type: Option<&'a str>,
}

/// Resource that was accepted and whose update is in the current batch.
struct AcceptedResource {
    name: ArcStr,
    resource: LazyResource,
    /// Resource as received, for the warm-start cache.
    bytes: Bytes,
    /// Decoding error because of which a fail-closed substitute replaced the record.
    substitution_error: Option<DecodeError>,
}

impl<'a, H: UpdateHandler> UpdateBatch<'a, H> {
    fn new(
        push: Push<'a>,
        handler: &'a H,
        intake: DecodeOptions,
        cached_type: Option<&'a str>,
    ) -> Self {
        Self {
            push,
            handler,
            options: intake,
            updates: Vec::with_capacity(MAX_BATCH_RECORDS),
            accepted: Vec::new(),
            cached_type,
        }
    }

    /// Returns the resource type of the push.
    fn kind(&self) -> Option<ResourceType> {
        self.push
            .kind()
            .and_then(|kind| self.options.role.resource_type(kind))
    }

    fn apply_resource(&mut self, kind: Option<ResourceType>, index: usize, bytes: Bytes) {
        let resource = match LazyResource::decode_envelope(bytes.clone()) {
            Ok(resource) => resource,
            Err(error) => return self.reject_resource(&format!("resource {index}"), &error),
        };
        let name = ArcStr::from(resource.name.as_str());
        let Some(kind) = kind else { return };
        let (update, replaced) = match self.decode_resource(kind, &name, &resource) {
            Ok(read) => read,
            Err(error) => return self.reject_resource(&name, &error),
        };
        self.updates.push(update);
        self.accepted.push(AcceptedResource {
            name,
            resource,
            bytes,
            substitution_error: replaced,
        });
        if self.updates.len() >= MAX_BATCH_RECORDS {
            self.flush();
        }
    }

    /// Decodes a resource. If it cannot be decoded in full and has a substitute, returns the substitute with the error.
    fn decode_resource(
        &self,
        kind: ResourceType,
        name: &ArcStr,
        resource: &LazyResource,
    ) -> Result<(MeshUpdate, Option<DecodeError>), DecodeError> {
        let value = resource.value();
        match kind {
            ResourceType::Address => {
                let (update, unknown) = decode_address(name, resource)?;
                if unknown > 0 {
                    self.handler.on_unknown_fields(ADDRESS_TYPE_URL, unknown);
                }
                Ok((update, None))
            }
            ResourceType::Policy => {
                let (policy, error) =
                    self.record_or_substitute(name, decode::decode_policy(name, &value))?;
                Ok((MeshUpdate::Policy(policy), error))
            }
            ResourceType::Waypoint(of) => {
                let read = records::decode(of, name, &value);
                let (record, error) = self.record_or_substitute(name, read)?;
                let update = WaypointUpdate::Upserted(name.clone(), record);
                Ok((MeshUpdate::Waypoint(update), error))
            }
        }
    }

    /// Returns a decoded record. If decoding failed, returns the substitute with the error, or the error if there is no
    /// substitute.
    fn record_or_substitute<T>(
        &self,
        name: &ArcStr,
        read: Result<T, RecordDecodeError<T>>,
    ) -> Result<(T, Option<DecodeError>), DecodeError> {
        let RecordDecodeError { error, substitute } = match read {
            Ok(record) => return Ok((record, None)),
            Err(refused) => refused,
        };
        let keeps_policies = self.options.invalid_policies == InvalidPolicyMode::KeepLastGood;
        match substitute {
            Some(substitute) if !(substitute.is_policy && keeps_policies) => {
                let Substitute { record, effect, .. } = substitute;
                tracing::error!(%name, %error, effect, "record not understood, a substitute takes its place");
                Ok((*record, Some(error)))
            }
            _ => Err(error),
        }
    }

    fn reject_resource(&mut self, name: &str, error: &DecodeError) {
        tracing::warn!(name, %error, "resource refused, its last good version stays");
        self.push.reject_resource(name, error);
    }

    fn remove_resource(&mut self, kind: Option<ResourceType>, name: ArcStr, now: Instant) {
        // Keeps the order of the push.
        self.flush_accepted();
        self.push.remove_resource(&name, now);
        if let Some(type_url) = self.cached_type {
            self.handler.on_resource_accepted(
                type_url,
                &name,
                &CachedResource::Removed(name.clone()),
            );
        }
        self.updates.push(match kind {
            Some(ResourceType::Address) => MeshUpdate::AddressRemoved(name),
            Some(ResourceType::Policy) => MeshUpdate::PolicyRemoved(name),
            Some(ResourceType::Waypoint(of)) => {
                MeshUpdate::Waypoint(WaypointUpdate::Removed(of, name))
            }
            None => return,
        });
        if self.updates.len() >= MAX_BATCH_RECORDS {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if !self.updates.is_empty() {
            self.handler.apply(&mut self.updates);
            self.updates.clear();
        }
        self.flush_accepted();
    }

    fn flush_accepted(&mut self) {
        for taken in self.accepted.drain(..) {
            let AcceptedResource {
                name,
                resource,
                bytes,
                substitution_error: replaced,
            } = taken;
            match replaced {
                None => self
                    .push
                    .accept_resource(&name, &resource.version, &resource.aliases),
                Some(error) => self.push.replace_resource(&name, &error),
            }
            if let Some(type_url) = self.cached_type {
                self.handler.on_resource_accepted(
                    type_url,
                    &name,
                    &CachedResource::Resource(bytes),
                );
            }
        }
    }
}

/// Decodes a WDS record by the stream's type, ignoring the resource's own type URL. Also returns the number of
/// unknown fields.
fn decode_address(
    name: &ArcStr,
    resource: &LazyResource,
) -> Result<(MeshUpdate, u64), DecodeError> {
    let value = resource.value();
    let update = match AddressRecord::decode(&value)? {
        AddressRecord::Workload(mut workload) => {
            if workload.uid == *name {
                // Shares the text between the table and the known names.
                workload.uid = name.clone();
            }
            MeshUpdate::Workload(workload)
        }
        AddressRecord::Service(service) => MeshUpdate::Service(service),
    };
    Ok((update, AddressRecord::unknown_field_count(&value)))
}
