//! Processes a push: resources are decoded one at a time and given to the handler in small batches.
//!
//! A resource that is not understood is refused, and its last good version stays. For a policy,
//! that version may allow connections that the new one denies: a deny-all substitute replaces it at
//! once, see [`NotUnderstoodPolicies`].

use std::time::Instant;

use ambit_model::{ArcStr, Authorization, Service, WaypointRecord, WaypointRecordType, Workload};
use ambit_wire::{
    decode::{
        self, AddressRecord, DecodeError, LeanDeltaResponse, LeanResource, NotUnderstood,
        Substitute,
    },
    encode::ADDRESS_TYPE_URL,
    records,
};
use ambit_xds_core::{Effect, Ending, Push};
use bytes::Bytes;

use crate::role::{Resource, Role};

/// Records in a batch. A handler that applies them under a lock holds it for some tens of microseconds.
const MAX_BATCH_RECORDS: usize = 64;
/// Records after which other tasks of the thread may run.
const RECORDS_BETWEEN_YIELDS: usize = 1024;

/// Decoder of resources and the tables that they update.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Intake {
    pub(crate) role: Role,
    pub(crate) not_understood: NotUnderstoodPolicies,
}

/// Treatment of policies that cannot be decoded in full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NotUnderstoodPolicies {
    /// Every connection in its scope is refused, until an understood version arrives or the policy is
    /// removed.
    #[default]
    Deny,
    /// Keeps the last good version in force, if there is one.
    KeepLastGood,
}

/// Change of the published state.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// A workload is new or has changed.
    Workload(Box<Workload>),
    /// A service is new or has changed.
    Service(Box<Service>),
    /// A policy is new or has changed, or a fail-closed substitute replaces it
    /// ([`Authorization::not_understood`]).
    Policy(Authorization),
    /// Removal of a workload or service by its name in WDS.
    AddressGone(ArcStr),
    /// Removal of a policy by its name (`namespace/name`).
    PolicyGone(ArcStr),
    /// Addition, change or removal of a waypoint record.
    Waypoint(WaypointUpdate),
}

/// Change of a record of a waypoint.
#[derive(Clone, Debug, PartialEq)]
pub enum WaypointUpdate {
    /// A record is new or has changed, or a substitute replaces it: name of the resource, and contents.
    Put(ArcStr, WaypointRecord),
    /// Removal of a record by type and resource name.
    Gone(WaypointRecordType, ArcStr),
}

/// The cached form of a resource, for [`crate::Client::restore`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cached {
    /// An existing resource, as received.
    Resource(Bytes),
    /// The name of a removed one.
    Gone(ArcStr),
}

/// Receiver of published changes.
pub trait Handler: Send + 'static {
    /// Applies a batch, and clears it.
    fn apply(&self, batch: &mut Vec<Update>);

    /// A push of workloads and services was processed: unless they are on demand, all existing ones are
    /// known, except for refused ones.
    fn addresses_known(&self) {}

    /// A push of policies was processed: all existing ones are known, except for refused ones.
    fn policies_known(&self) {}

    /// A push of a type that is for waypoints was processed: all existing ones are known, except for refused ones.
    fn waypoint_known(&self, _of: WaypointRecordType) {}

    /// Caches a resource that was accepted or removed. A cache in this order can be restored.
    fn cache(&self, _type_url: &str, _name: &str, _cached: &Cached) {}

    /// A push was processed and cached; the first one of a type without a refusal makes it complete.
    fn push_cached(&self, _type_url: &str, _complete: bool) {}

    /// Reports that every wildcard subscription has been received once without a rejection.
    fn ready(&self) {}

    /// A workload or service has this many unknown fields; they are ignored.
    fn unknown_fields(&self, _type_url: &str, _count: u64) {}

    /// A message of a type arrived, with this many bytes (`istio_xds_message_*`).
    fn received(&self, _type_url: &str, _bytes: usize) {}

    /// A stream, or the attempt to open one, ended (`istio_xds_connection_terminations_total`).
    fn ended(&self, _ending: Ending) {}
}

/// Processes one push and returns the next effects.
pub(crate) async fn take_in<H: Handler>(
    client: &mut ambit_xds_core::Client,
    handler: &H,
    intake: Intake,
    response: LeanDeltaResponse,
) -> Vec<Effect> {
    let LeanDeltaResponse {
        resources,
        type_url,
        nonce,
        removed_resources,
    } = response;
    let push = client.begin_push(&type_url, nonce);
    let cached_type = push.kind().map(|_| type_url.as_str());
    let mut batch = Batch::new(push, handler, intake, cached_type);
    let kind = batch.kind();
    for (index, bytes) in resources.into_iter().enumerate() {
        batch.resource(kind, index, bytes);
        if index % RECORDS_BETWEEN_YIELDS == RECORDS_BETWEEN_YIELDS - 1 {
            tokio::task::yield_now().await;
        }
    }
    batch.flush();
    let now = Instant::now();
    for name in &removed_resources {
        batch.removed(kind, name.as_str().into(), now);
    }
    batch.flush();
    if let Some(type_url) = cached_type {
        handler.push_cached(type_url, !batch.push.is_refused());
    }
    report_known(kind, handler);
    batch.push.finish()
}

/// Restores the cached resources of a type, as one push without a server.
pub(crate) fn restore<H: Handler>(
    client: &mut ambit_xds_core::Client,
    handler: &H,
    intake: Intake,
    type_url: &str,
    cached: impl Iterator<Item = Cached>,
) -> Vec<Effect> {
    let push = client.begin_push(type_url, String::new());
    let mut batch = Batch::new(push, handler, intake, None);
    let kind = batch.kind();
    let now = Instant::now();
    for (index, cached) in cached.enumerate() {
        match cached {
            Cached::Resource(bytes) => batch.resource(kind, index, bytes),
            Cached::Gone(name) => batch.removed(kind, name, now),
        }
    }
    batch.flush();
    report_known(kind, handler);
    batch.push.finish()
}

fn report_known<H: Handler>(kind: Option<Resource>, handler: &H) {
    match kind {
        Some(Resource::Address) => handler.addresses_known(),
        Some(Resource::Policy) => handler.policies_known(),
        Some(Resource::Waypoint(of)) => handler.waypoint_known(of),
        None => {}
    }
}

struct Batch<'a, H> {
    push: Push<'a>,
    handler: &'a H,
    intake: Intake,
    updates: Vec<Update>,
    taken: Vec<AcceptedResource>,
    /// The type, if its resources are to be cached.
    cached_type: Option<&'a str>,
}

/// Accepted resource whose update is in the current batch.
struct AcceptedResource {
    name: ArcStr,
    resource: LeanResource,
    /// Bytes as received.
    bytes: Bytes,
    /// Error because of which a fail-closed substitute replaced the policy.
    replaced: Option<DecodeError>,
}

impl<'a, H: Handler> Batch<'a, H> {
    fn new(push: Push<'a>, handler: &'a H, intake: Intake, cached_type: Option<&'a str>) -> Self {
        Self {
            push,
            handler,
            intake,
            updates: Vec::with_capacity(MAX_BATCH_RECORDS),
            taken: Vec::new(),
            cached_type,
        }
    }

    /// The type of the push's resources.
    fn kind(&self) -> Option<Resource> {
        self.push
            .kind()
            .and_then(|kind| self.intake.role.resource(kind))
    }

    fn resource(&mut self, kind: Option<Resource>, index: usize, bytes: Bytes) {
        let resource = match LeanResource::read(bytes.clone()) {
            Ok(resource) => resource,
            Err(error) => return self.rejected(&format!("resource {index}"), &error),
        };
        let name = ArcStr::from(resource.name.as_str());
        let Some(kind) = kind else { return };
        let (update, replaced) = match self.read(kind, &name, &resource) {
            Ok(read) => read,
            Err(error) => return self.rejected(&name, &error),
        };
        self.updates.push(update);
        self.taken.push(AcceptedResource {
            name,
            resource,
            bytes,
            replaced,
        });
        if self.updates.len() >= MAX_BATCH_RECORDS {
            self.flush();
        }
    }

    /// Decodes a resource; if it is not understood, returns its substitute with the error.
    fn read(
        &self,
        kind: Resource,
        name: &ArcStr,
        resource: &LeanResource,
    ) -> Result<(Update, Option<DecodeError>), DecodeError> {
        let value = resource.value();
        match kind {
            Resource::Address => {
                let (update, unknown) = address(name, resource)?;
                if unknown > 0 {
                    self.handler.unknown_fields(ADDRESS_TYPE_URL, unknown);
                }
                Ok((update, None))
            }
            Resource::Policy => {
                let (policy, error) = self.or_substitute(name, decode::policy(name, &value))?;
                Ok((Update::Policy(policy), error))
            }
            Resource::Waypoint(of) => {
                let read = records::decode(of, name, &value);
                let (record, error) = self.or_substitute(name, read)?;
                let update = WaypointUpdate::Put(name.clone(), record);
                Ok((Update::Waypoint(update), error))
            }
        }
    }

    /// Decodes a record, or returns its substitute with the error if it is not understood.
    fn or_substitute<T>(
        &self,
        name: &ArcStr,
        read: Result<T, NotUnderstood<T>>,
    ) -> Result<(T, Option<DecodeError>), DecodeError> {
        let NotUnderstood { error, substitute } = match read {
            Ok(record) => return Ok((record, None)),
            Err(refused) => refused,
        };
        let keeps_policies = self.intake.not_understood == NotUnderstoodPolicies::KeepLastGood;
        match substitute {
            Some(substitute) if !(substitute.is_policy && keeps_policies) => {
                let Substitute { record, effect, .. } = substitute;
                tracing::error!(%name, %error, effect, "record not understood, a substitute takes its place");
                Ok((*record, Some(error)))
            }
            _ => Err(error),
        }
    }

    fn rejected(&mut self, name: &str, error: &DecodeError) {
        tracing::warn!(name, %error, "resource refused, its last good version stays");
        self.push.rejected(name, error);
    }

    fn removed(&mut self, kind: Option<Resource>, name: ArcStr, now: Instant) {
        // Keeps the order of the push.
        self.flush_accepted();
        self.push.removed(&name, now);
        if let Some(type_url) = self.cached_type {
            self.handler
                .cache(type_url, &name, &Cached::Gone(name.clone()));
        }
        self.updates.push(match kind {
            Some(Resource::Address) => Update::AddressGone(name),
            Some(Resource::Policy) => Update::PolicyGone(name),
            Some(Resource::Waypoint(of)) => Update::Waypoint(WaypointUpdate::Gone(of, name)),
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
        for taken in self.taken.drain(..) {
            let AcceptedResource {
                name,
                resource,
                bytes,
                replaced,
            } = taken;
            match replaced {
                None => self
                    .push
                    .accepted(&name, &resource.version, &resource.aliases),
                Some(error) => self.push.replaced(&name, &error),
            }
            if let Some(type_url) = self.cached_type {
                self.handler
                    .cache(type_url, &name, &Cached::Resource(bytes));
            }
        }
    }
}

/// Decodes by the stream's type and ignores the resource's own type URL. Also returns the number of
/// unknown fields.
fn address(name: &ArcStr, resource: &LeanResource) -> Result<(Update, u64), DecodeError> {
    let value = resource.value();
    let update = match AddressRecord::decode(&value)? {
        AddressRecord::Workload(mut workload) => {
            if workload.uid == *name {
                // Shares the text between the table and the known names.
                workload.uid = name.clone();
            }
            Update::Workload(workload)
        }
        AddressRecord::Service(service) => Update::Service(service),
    };
    Ok((update, AddressRecord::unknown_fields(&value)))
}
