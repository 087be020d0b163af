//! Taking in a push: resources are decoded one at a time and handed over in small batches.

use std::time::Instant;

use ambit_model::{ArcStr, Authorization, Service, Workload};
use ambit_wire::{
    decode::{self, AddressRecord, DecodeError, LeanDeltaResponse, LeanResource},
    encode::{ADDRESS_TYPE_URL, AUTHORIZATION_TYPE_URL},
};
use ambit_xds_core::{Effect, Ending, Kind, Push, TypeConfig};
use bytes::Bytes;

/// Records handed over at a time. Whoever applies them under a lock holds it for some tens of
/// microseconds.
const BATCH: usize = 64;
/// Records after which other tasks of the thread get their turn.
const YIELD_AFTER: usize = 1024;

/// WDS records: the first configured type.
pub(crate) const ADDRESSES: Kind = 0;
/// Policies: the second.
const POLICIES: Kind = 1;

pub(crate) fn types(on_demand: bool) -> Vec<TypeConfig> {
    vec![
        TypeConfig {
            type_url: ADDRESS_TYPE_URL.into(),
            on_demand,
        },
        TypeConfig {
            type_url: AUTHORIZATION_TYPE_URL.into(),
            on_demand: false,
        },
    ]
}

/// One change of what the control plane tells.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// A workload is there, or is different.
    Workload(Box<Workload>),
    /// A service is there, or is different.
    Service(Box<Service>),
    /// A policy is there, or is different.
    Policy(Authorization),
    /// A workload or service is gone: its name in WDS.
    AddressGone(ArcStr),
    /// A policy is gone: its name (`namespace/name`).
    PolicyGone(ArcStr),
}

/// What is kept of a resource, for [`crate::Client::restore`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It is there: as it came.
    Resource(Bytes),
    /// It is gone: its name.
    Gone(ArcStr),
}

/// Who keeps what the control plane tells.
pub trait Handler: Send + 'static {
    /// Applies a batch and empties it.
    fn apply(&self, batch: &mut Vec<Update>);

    /// A push of workloads and services was taken in: unless they come on demand, those that exist
    /// are known, but for refused ones.
    fn addresses_known(&self) {}

    /// A push of policies was taken in: those that exist are known, but for refused ones.
    fn policies_known(&self) {}

    /// This was taken in of a type that is followed as a whole. What is kept in this order can be
    /// restored.
    fn keep(&self, _type_url: &str, _name: &str, _kept: &Kept) {}

    /// A push was taken in and kept; the first one of a type without a refusal makes it complete.
    fn kept(&self, _type_url: &str, _complete: bool) {}

    /// Everything that is followed as a whole has been received once, without a refusal.
    fn ready(&self) {}

    /// A message of a type came, with so many bytes (`istio_xds_message_*`).
    fn received(&self, _type_url: &str, _bytes: usize) {}

    /// A stream, or the attempt to open one, ended (`istio_xds_connection_terminations_total`).
    fn ended(&self, _ending: Ending) {}
}

/// Takes in one push and says what to do next.
pub(crate) async fn take_in<H: Handler>(
    client: &mut ambit_xds_core::Client,
    handler: &H,
    response: LeanDeltaResponse,
) -> Vec<Effect> {
    let LeanDeltaResponse {
        resources,
        type_url,
        nonce,
        removed_resources,
    } = response;
    let push = client.begin_push(&type_url, nonce);
    let keep = push.is_whole().then_some(type_url.as_str());
    let mut batch = Batch::new(push, handler, keep);
    let kind = batch.push.kind();
    for (index, bytes) in resources.into_iter().enumerate() {
        batch.resource(kind, index, bytes);
        if index % YIELD_AFTER == YIELD_AFTER - 1 {
            tokio::task::yield_now().await;
        }
    }
    batch.flush();
    let now = Instant::now();
    for name in &removed_resources {
        batch.removed(kind, name.as_str().into(), now);
    }
    batch.flush();
    if let Some(type_url) = keep {
        handler.kept(type_url, !batch.push.is_refused());
    }
    tell_known(kind, handler);
    batch.push.finish()
}

/// Takes in what was kept of a type, as one push without a server.
pub(crate) fn restore<H: Handler>(
    client: &mut ambit_xds_core::Client,
    handler: &H,
    type_url: &str,
    kept: impl Iterator<Item = Kept>,
) -> Vec<Effect> {
    let mut batch = Batch::new(client.begin_push(type_url, String::new()), handler, None);
    let kind = batch.push.kind();
    let now = Instant::now();
    for (index, kept) in kept.enumerate() {
        match kept {
            Kept::Resource(bytes) => batch.resource(kind, index, bytes),
            Kept::Gone(name) => batch.removed(kind, name, now),
        }
    }
    batch.flush();
    tell_known(kind, handler);
    batch.push.finish()
}

fn tell_known<H: Handler>(kind: Option<Kind>, handler: &H) {
    match kind {
        Some(ADDRESSES) => handler.addresses_known(),
        Some(POLICIES) => handler.policies_known(),
        _ => {}
    }
}

struct Batch<'a, H> {
    push: Push<'a>,
    handler: &'a H,
    updates: Vec<Update>,
    accepted: Vec<(ArcStr, LeanResource, Bytes)>,
    /// The type, if what comes is to be kept.
    keep: Option<&'a str>,
}

impl<'a, H: Handler> Batch<'a, H> {
    fn new(push: Push<'a>, handler: &'a H, keep: Option<&'a str>) -> Self {
        Self {
            push,
            handler,
            updates: Vec::with_capacity(BATCH),
            accepted: Vec::new(),
            keep,
        }
    }

    fn resource(&mut self, kind: Option<Kind>, index: usize, bytes: Bytes) {
        let resource = match LeanResource::read(bytes.clone()) {
            Ok(resource) => resource,
            Err(error) => return self.rejected(&format!("resource {index}"), &error),
        };
        let name = ArcStr::from(resource.name.as_str());
        match read(kind, &name, &resource) {
            Ok(Some(update)) => {
                self.updates.push(update);
                self.accepted.push((name, resource, bytes));
            }
            Ok(None) => {}
            Err(error) => self.rejected(&name, &error),
        }
        if self.updates.len() >= BATCH {
            self.flush();
        }
    }

    fn rejected(&mut self, name: &str, error: &DecodeError) {
        tracing::warn!(name, %error, "resource refused, the last good one stays");
        self.push.rejected(name, error);
    }

    fn removed(&mut self, kind: Option<Kind>, name: ArcStr, now: Instant) {
        // In the order of the push.
        self.flush_accepted();
        self.push.removed(&name, now);
        if let Some(type_url) = self.keep {
            self.handler
                .keep(type_url, &name, &Kept::Gone(name.clone()));
        }
        self.updates.push(match kind {
            Some(ADDRESSES) => Update::AddressGone(name),
            Some(POLICIES) => Update::PolicyGone(name),
            _ => return,
        });
        if self.updates.len() >= BATCH {
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
        for (name, resource, bytes) in self.accepted.drain(..) {
            self.push
                .accepted(&name, &resource.version, &resource.aliases);
            if let Some(type_url) = self.keep {
                self.handler.keep(type_url, &name, &Kept::Resource(bytes));
            }
        }
    }
}

/// Decodes by the stream's type; the resource's own type URL is not looked at.
fn read(
    kind: Option<Kind>,
    name: &ArcStr,
    resource: &LeanResource,
) -> Result<Option<Update>, DecodeError> {
    Ok(match kind {
        Some(ADDRESSES) => Some(match AddressRecord::decode(&resource.value())? {
            AddressRecord::Workload(mut workload) => {
                if workload.uid == *name {
                    // One text for the table and for the names that are known.
                    workload.uid = name.clone();
                }
                Update::Workload(workload)
            }
            AddressRecord::Service(service) => Update::Service(service),
        }),
        Some(POLICIES) => Some(Update::Policy(decode::authorization(&resource.value())?)),
        _ => None,
    })
}
