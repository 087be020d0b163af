//! State machine of the delta xDS client: one stream, several resource types, each with a wildcard or on-demand
//! subscription.
//!
//! The client keeps its resources while disconnected, and sends their names and versions on reconnect; the server then
//! sends only what has changed or was removed. If an update of a resource is rejected, the client continues to report
//! the version of the last good one, so that the server sends the update again and still reports a removal. A resource
//! that was replaced by a substitute has a version that no server uses.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use arcstr::ArcStr;
use hashbrown::HashMap;

use crate::{StreamEnding, backoff::Backoff, known::ResourceVersions};

/// Time for which the client caches that a resource does not exist.
const ABSENT_TTL: Duration = Duration::from_secs(30);
/// Maximum number of cached names of resources that do not exist.
const MAX_ABSENT_NAMES: usize = 4096;
/// Version that the client reports for a resource that a substitute replaced. No server uses it, so that the server
/// sends the resource again.
const REPLACED_VERSION: &str = "not-understood";
/// Maximum length of a NACK's error text, in bytes; longer ones are truncated, since servers only log them.
const MAX_NACK_BYTES: usize = 4096;

/// Index of a resource type in the client's configuration.
pub type TypeIndex = usize;

/// Configuration of the subscription to one resource type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeConfig {
    /// Type URL of the subscription.
    pub type_url: ArcStr,
    /// Whether the client subscribes to single resources when they are needed, instead of to all of them (wildcard).
    pub on_demand: bool,
}

/// Request to send on the stream (`DeltaDiscoveryRequest`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeltaRequest {
    /// Type URL of the resources.
    pub type_url: ArcStr,
    /// Names to subscribe to.
    pub subscribe: Vec<ArcStr>,
    /// Names to unsubscribe from.
    pub unsubscribe: Vec<ArcStr>,
    /// Names and versions of known resources, on the first request of a type on a stream.
    pub initial_versions: Vec<(ArcStr, String)>,
    /// Nonce of the push that the request acknowledges or rejects.
    pub nonce: Option<String>,
    /// Reason for rejecting the push (NACK); `None` acknowledges it.
    pub error: Option<String>,
    /// Whether this is the stream's first request, which carries the node message.
    pub is_first: bool,
}

/// Effect of an event, which the caller must carry out in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Sends a request on the stream.
    Send(DeltaRequest),
    /// Wakes the callers that wait for a resource.
    DemandResolved {
        /// Index of the resource type.
        kind: TypeIndex,
        /// Name of the resource as requested.
        name: ArcStr,
    },
    /// Reports that every type with a wildcard subscription has been received once. Occurs only once.
    Ready,
    /// Connects to the server after a delay.
    ReconnectAfter {
        /// Delay from now.
        after: Duration,
    },
}

/// State of an xDS client.
#[derive(Debug)]
pub struct Client {
    types: Vec<TypeState>,
    backoff: Backoff,
    is_connected: bool,
    has_received_response: bool,
    ready: bool,
}

#[derive(Debug)]
struct TypeState {
    config: TypeConfig,
    versions: ResourceVersions,
    is_synced: bool,
    demands: NameDemands,
}

/// On-demand names without a resource: requested and still pending, or known not to exist.
#[derive(Debug, Default)]
struct NameDemands {
    names: HashMap<ArcStr, DemandState>,
    /// Names that are known not to exist, oldest first. An entry is stale if the name's state has changed since.
    absent_names: VecDeque<(Instant, ArcStr)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DemandState {
    Pending,
    AbsentSince(Instant),
}

impl Client {
    /// Creates a client that has no resources yet.
    pub fn new(types: Vec<TypeConfig>) -> Self {
        let types = types
            .into_iter()
            .map(|config| TypeState {
                config,
                versions: ResourceVersions::default(),
                is_synced: false,
                demands: NameDemands::default(),
            })
            .collect();
        Self {
            types,
            backoff: Backoff::default(),
            is_connected: false,
            has_received_response: false,
            ready: false,
        }
    }

    /// Handles an opened stream. Returns the first request of each resource type.
    pub fn on_connected(&mut self) -> Vec<Effect> {
        self.is_connected = true;
        self.has_received_response = false;
        self.types
            .iter()
            .flat_map(TypeState::first_requests)
            .map(Effect::Send)
            .collect()
    }

    /// Handles the end of a stream, or a failed attempt to open one.
    pub fn on_disconnected(&mut self, ending: StreamEnding) -> Vec<Effect> {
        self.is_connected = false;
        vec![Effect::ReconnectAfter {
            after: self.backoff.next_delay(ending, self.has_received_response),
        }]
    }

    /// Requests a resource for a waiting caller. Resolves at once for a type with a wildcard subscription, or while the
    /// client knows that the resource does not exist.
    pub fn on_demand(&mut self, kind: TypeIndex, name: &str, now: Instant) -> Vec<Effect> {
        let Some(state) = self.types.get_mut(kind) else {
            return Vec::new();
        };
        let name = ArcStr::from(name);
        if !state.config.on_demand {
            return vec![Effect::DemandResolved { kind, name }];
        }
        match state.demands.names.get(&name) {
            Some(DemandState::Pending) => return Vec::new(),
            Some(DemandState::AbsentSince(since)) if now.duration_since(*since) < ABSENT_TTL => {
                return vec![Effect::DemandResolved { kind, name }];
            }
            _ => {}
        }
        state
            .demands
            .names
            .insert(name.clone(), DemandState::Pending);
        if !self.is_connected {
            return Vec::new();
        }
        vec![Effect::Send(DeltaRequest {
            type_url: state.config.type_url.clone(),
            subscribe: vec![name],
            ..DeltaRequest::default()
        })]
    }

    /// Withdraws the on-demand request of a name whose last waiting caller is gone, so that a new stream does not
    /// repeat it. A subscription that was sent remains until its response or the end of the stream.
    pub fn withdraw_demand(&mut self, kind: TypeIndex, name: &str) {
        if let Some(state) = self.types.get_mut(kind)
            && state.demands.names.get(name) == Some(&DemandState::Pending)
        {
            state.demands.names.remove(name);
        }
    }

    /// Starts processing a push of the server. A push of an unknown type is acknowledged, too.
    pub fn begin_push(&mut self, type_url: &str, nonce: String) -> Push<'_> {
        self.has_received_response = true;
        let kind = self
            .types
            .iter()
            .position(|state| state.config.type_url == type_url);
        Push {
            client: self,
            kind,
            type_url: type_url.into(),
            nonce,
            resolved_names: Vec::new(),
            rejected_count: 0,
            replaced_count: 0,
            error: String::new(),
        }
    }

    /// Returns the number of known resources of a type.
    pub fn known_resources(&self, kind: TypeIndex) -> usize {
        self.types.get(kind).map_or(0, |state| state.versions.len())
    }

    /// Whether every type with a wildcard subscription has been received once.
    pub fn is_ready(&self) -> bool {
        self.ready
    }
}

impl TypeState {
    fn first_requests(&self) -> Vec<DeltaRequest> {
        let everything = || vec![arcstr::literal!("*")];
        let type_url = self.config.type_url.clone();
        let (subscribe, unsubscribe) = match self.config.on_demand {
            // Subscribes to everything, and immediately to nothing.
            true => (everything(), everything()),
            false => (Vec::new(), Vec::new()),
        };
        let first = DeltaRequest {
            type_url: type_url.clone(),
            subscribe,
            unsubscribe,
            initial_versions: self.versions.to_versions(),
            is_first: true,
            ..DeltaRequest::default()
        };
        let open: Vec<ArcStr> = self.demands.names.keys().cloned().collect();
        let demands = (!open.is_empty()).then(|| DeltaRequest {
            type_url,
            subscribe: open,
            ..DeltaRequest::default()
        });
        [first].into_iter().chain(demands).collect()
    }
}

/// Push that is being processed. The caller reports each resource, and then ends the push with [`Push::finish`].
#[derive(Debug)]
pub struct Push<'a> {
    client: &'a mut Client,
    kind: Option<TypeIndex>,
    type_url: ArcStr,
    nonce: String,
    resolved_names: Vec<ArcStr>,
    rejected_count: usize,
    replaced_count: usize,
    error: String,
}

impl Push<'_> {
    /// Returns the index of the push's resource type; `None` for an unknown type.
    pub fn kind(&self) -> Option<TypeIndex> {
        self.kind
    }

    /// Whether a resource of the push was rejected without a substitute so far.
    pub fn has_rejections(&self) -> bool {
        self.rejected_count > 0
    }

    fn state(&mut self) -> Option<&mut TypeState> {
        self.client.types.get_mut(self.kind?)
    }

    /// Records that the handler accepted a resource.
    pub fn accept_resource(&mut self, name: &ArcStr, version: &str, aliases: &[String]) {
        let Some(state) = self.state() else { return };
        state.versions.insert(name.clone(), version);
        if state.demands.names.is_empty() {
            return;
        }
        let names = aliases.iter().map(String::as_str).chain([name.as_str()]);
        let met: Vec<_> = names
            .filter_map(|name| state.demands.names.remove_entry(name))
            .map(|(name, _)| name)
            .collect();
        self.resolved_names.extend(met);
    }

    /// Records that a resource was rejected, which rejects the push. Wakes the callers that wait for the resource,
    /// since no other response will arrive.
    pub fn reject_resource(&mut self, name: &str, reason: &dyn std::fmt::Display) {
        self.rejected_count += 1;
        self.append_error(name, reason);
        let Some(state) = self.state() else { return };
        if let Some((name, _)) = state.demands.names.remove_entry(name) {
            self.resolved_names.push(name);
        }
    }

    /// Records that a rejected resource is replaced by a substitute until a valid version arrives. The push is
    /// rejected, but the type counts as received.
    pub fn replace_resource(&mut self, name: &ArcStr, reason: &dyn std::fmt::Display) {
        self.replaced_count += 1;
        self.append_error(name, reason);
        if let Some(state) = self.state() {
            state.versions.insert(name.clone(), REPLACED_VERSION);
        }
    }

    fn append_error(&mut self, name: &str, reason: &dyn std::fmt::Display) {
        if self.error.len() < MAX_NACK_BYTES {
            let separator = if self.error.is_empty() { "" } else { "; " };
            self.error.push_str(&format!("{separator}{name}: {reason}"));
        }
    }

    /// Records a removed resource, or a requested one that does not exist.
    pub fn remove_resource(&mut self, name: &str, now: Instant) {
        let Some(state) = self.state() else { return };
        state.versions.remove(name);
        if let Some(name) = state.demands.set_absent(name, now) {
            self.resolved_names.push(name);
        }
    }

    /// Ends the push: acknowledges it, or rejects it if any of its resources was rejected.
    pub fn finish(mut self) -> Vec<Effect> {
        let refused = self.rejected_count + self.replaced_count;
        let complete = self.rejected_count == 0;
        let mut effects = Vec::new();
        let mut unsubscribe = Vec::new();
        if let Some(state) = self.state() {
            state.is_synced |= complete;
            unsubscribe = state.demands.evict_absent();
        }
        let Self {
            client,
            kind,
            type_url,
            nonce,
            resolved_names: answered,
            mut error,
            ..
        } = self;
        if error.len() >= MAX_NACK_BYTES {
            let end = (0..=MAX_NACK_BYTES)
                .rev()
                .find(|at| error.is_char_boundary(*at))
                .unwrap_or(0);
            error.truncate(end);
            error.push_str(&format!("… ({refused} resources in all)"));
        }
        effects.push(Effect::Send(DeltaRequest {
            type_url: type_url.clone(),
            nonce: Some(nonce),
            error: (refused > 0).then_some(error),
            ..DeltaRequest::default()
        }));
        if !unsubscribe.is_empty() {
            // A separate request: servers ignore subscription changes in an acknowledgement.
            effects.push(Effect::Send(DeltaRequest {
                type_url,
                unsubscribe,
                ..DeltaRequest::default()
            }));
        }
        if let Some(kind) = kind {
            effects.extend(
                answered
                    .into_iter()
                    .map(|name| Effect::DemandResolved { kind, name }),
            );
        }
        let mut whole = client.types.iter().filter(|state| !state.config.on_demand);
        if !client.ready && whole.all(|state| state.is_synced) {
            client.ready = true;
            effects.push(Effect::Ready);
        }
        effects
    }
}

impl NameDemands {
    /// Caches that a resource does not exist. Returns the name if callers may wait for it.
    fn set_absent(&mut self, name: &str, now: Instant) -> Option<ArcStr> {
        let (name, _) = self.names.remove_entry(name)?;
        self.names
            .insert(name.clone(), DemandState::AbsentSince(now));
        self.absent_names.push_back((now, name.clone()));
        Some(name)
    }

    /// Removes the oldest cached names of resources that do not exist, down to the maximum number, and returns them.
    fn evict_absent(&mut self) -> Vec<ArcStr> {
        let mut evicted = Vec::new();
        while self.absent_names.len() > MAX_ABSENT_NAMES {
            let Some((since, name)) = self.absent_names.pop_front() else {
                break;
            };
            if self.names.get(&name) == Some(&DemandState::AbsentSince(since)) {
                self.names.remove(&name);
                evicted.push(name);
            }
        }
        evicted
    }
}
