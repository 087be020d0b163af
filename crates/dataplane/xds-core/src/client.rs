//! The client's state machine: one stream, several resource types, each whole or on demand.
//!
//! Known resources are kept while disconnected and sent to the server on reconnect; it then sends only
//! what changed meanwhile and what is gone. A refused resource keeps the version of the last good one:
//! the server sees that it must send it again, and its removal is still reported. A resource that was
//! replaced by a substitute has a version that no server uses.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use arcstr::ArcStr;
use hashbrown::HashMap;

use crate::{Ending, backoff::Backoff, known::Known};

/// Time for which a negative answer is cached.
const ABSENT_TTL: Duration = Duration::from_secs(30);
/// Maximum cached negative answers.
const MAX_ABSENT: usize = 4096;
/// The version of a resource that was replaced by a substitute: the server sends it again, even if it is
/// the last good one.
const REPLACED_VERSION: &str = "not-understood";
/// Maximum length of a NACK's text in bytes: longer ones are truncated, servers only log them.
const MAX_NACK_BYTES: usize = 4096;

/// Index of a configured resource type.
pub type Kind = usize;

/// Configuration of a resource type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeConfig {
    /// Type URL of the subscription.
    pub type_url: ArcStr,
    /// Whether only requested resources are subscribed to, instead of all.
    pub on_demand: bool,
}

/// A message to the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The resource type.
    pub type_url: ArcStr,
    /// Names to subscribe to.
    pub subscribe: Vec<ArcStr>,
    /// Names to unsubscribe from.
    pub unsubscribe: Vec<ArcStr>,
    /// The known resources, on the first request of a stream.
    pub initial_versions: Vec<(ArcStr, String)>,
    /// Nonce of the push that this acknowledges.
    pub nonce: Option<String>,
    /// Why the push is refused.
    pub error: Option<String>,
    /// Whether this is the stream's first request, which identifies the client.
    pub is_first: bool,
}

/// An effect for the driver to carry out, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send on the stream.
    Send(Request),
    /// Wakes the waiters for a name.
    Answered {
        /// Type of the resource.
        kind: Kind,
        /// Resource name as requested.
        name: ArcStr,
    },
    /// Every type that is subscribed to as a whole has been received once. Emitted once.
    Ready,
    /// Connect after the delay.
    Connect {
        /// The delay from now.
        after: Duration,
    },
}

/// The state of one client.
#[derive(Debug)]
pub struct Client {
    types: Vec<TypeState>,
    backoff: Backoff,
    connected: bool,
    received: bool,
    ready: bool,
}

#[derive(Debug)]
struct TypeState {
    config: TypeConfig,
    known: Known,
    synced: bool,
    demands: Demands,
}

/// Requested names without a record: pending, or known not to exist.
#[derive(Debug, Default)]
struct Demands {
    names: HashMap<ArcStr, Demand>,
    /// Negative answers, oldest first; entries whose name has another state now are skipped.
    absent: VecDeque<(Instant, ArcStr)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demand {
    Pending,
    AbsentSince(Instant),
}

impl Client {
    /// Creates a client without resources.
    pub fn new(types: Vec<TypeConfig>) -> Self {
        let types = types
            .into_iter()
            .map(|config| TypeState {
                config,
                known: Known::default(),
                synced: false,
                demands: Demands::default(),
            })
            .collect();
        Self {
            types,
            backoff: Backoff::default(),
            connected: false,
            received: false,
            ready: false,
        }
    }

    /// Handles an opened stream: returns the first requests.
    pub fn on_connected(&mut self) -> Vec<Effect> {
        self.connected = true;
        self.received = false;
        self.types
            .iter()
            .flat_map(TypeState::first_requests)
            .map(Effect::Send)
            .collect()
    }

    /// Handles the end of a stream, or a failed attempt to open one.
    pub fn on_disconnected(&mut self, ending: Ending) -> Vec<Effect> {
        self.connected = false;
        vec![Effect::Connect {
            after: self.backoff.after(ending, self.received),
        }]
    }

    /// Demands a resource that is not known, for a caller. Has no effect for a type that is
    /// subscribed to as a whole, or while a negative response is cached: then the caller need not
    /// wait.
    pub fn on_demand(&mut self, kind: Kind, name: &str, now: Instant) -> Vec<Effect> {
        let Some(state) = self.types.get_mut(kind) else {
            return Vec::new();
        };
        let name = ArcStr::from(name);
        if !state.config.on_demand {
            return vec![Effect::Answered { kind, name }];
        }
        match state.demands.names.get(&name) {
            Some(Demand::Pending) => return Vec::new(),
            Some(Demand::AbsentSince(since)) if now.duration_since(*since) < ABSENT_TTL => {
                return vec![Effect::Answered { kind, name }];
            }
            _ => {}
        }
        state.demands.names.insert(name.clone(), Demand::Pending);
        if !self.connected {
            return Vec::new();
        }
        vec![Effect::Send(Request {
            type_url: state.config.type_url.clone(),
            subscribe: vec![name],
            ..Request::default()
        })]
    }

    /// Withdraws a demand whose last waiter is gone, so that it is not sent again. An earlier
    /// subscription stays until its response or the end of the stream.
    pub fn withdraw(&mut self, kind: Kind, name: &str) {
        if let Some(state) = self.types.get_mut(kind)
            && state.demands.names.get(name) == Some(&Demand::Pending)
        {
            state.demands.names.remove(name);
        }
    }

    /// Starts processing a push. One of an unknown type is acknowledged, too.
    pub fn begin_push(&mut self, type_url: &str, nonce: String) -> Push<'_> {
        self.received = true;
        let kind = self
            .types
            .iter()
            .position(|state| state.config.type_url == type_url);
        Push {
            client: self,
            kind,
            type_url: type_url.into(),
            nonce,
            answered: Vec::new(),
            rejected: 0,
            replaced: 0,
            error: String::new(),
        }
    }

    /// Number of resources of a type that the client has.
    pub fn known(&self, kind: Kind) -> usize {
        self.types.get(kind).map_or(0, |state| state.known.len())
    }

    /// Whether every type that is subscribed to as a whole has been received once.
    pub fn is_ready(&self) -> bool {
        self.ready
    }
}

impl TypeState {
    fn first_requests(&self) -> Vec<Request> {
        let everything = || vec![arcstr::literal!("*")];
        let type_url = self.config.type_url.clone();
        let (subscribe, unsubscribe) = match self.config.on_demand {
            // Subscribes to everything, and immediately to nothing.
            true => (everything(), everything()),
            false => (Vec::new(), Vec::new()),
        };
        let first = Request {
            type_url: type_url.clone(),
            subscribe,
            unsubscribe,
            initial_versions: self.known.to_versions(),
            is_first: true,
            ..Request::default()
        };
        let open: Vec<ArcStr> = self.demands.names.keys().cloned().collect();
        let demands = (!open.is_empty()).then(|| Request {
            type_url,
            subscribe: open,
            ..Request::default()
        });
        [first].into_iter().chain(demands).collect()
    }
}

/// Push in progress: after all resources are reported, [`Push::finish`] acknowledges it.
#[derive(Debug)]
pub struct Push<'a> {
    client: &'a mut Client,
    kind: Option<Kind>,
    type_url: ArcStr,
    nonce: String,
    answered: Vec<ArcStr>,
    rejected: usize,
    replaced: usize,
    error: String,
}

impl Push<'_> {
    /// Returns the type of the push; `None` for an unknown type.
    pub fn kind(&self) -> Option<Kind> {
        self.kind
    }

    /// Whether a resource of the push was refused without a substitute so far.
    pub fn is_refused(&self) -> bool {
        self.rejected > 0
    }

    fn state(&mut self) -> Option<&mut TypeState> {
        self.client.types.get_mut(self.kind?)
    }

    /// Records an accepted resource.
    pub fn accepted(&mut self, name: &ArcStr, version: &str, aliases: &[String]) {
        let Some(state) = self.state() else { return };
        state.known.insert(name.clone(), version);
        if state.demands.names.is_empty() {
            return;
        }
        let names = aliases.iter().map(String::as_str).chain([name.as_str()]);
        let met: Vec<_> = names
            .filter_map(|name| state.demands.names.remove_entry(name))
            .map(|(name, _)| name)
            .collect();
        self.answered.extend(met);
    }

    /// Rejects a resource. Its waiters are woken, since no other answer will arrive.
    pub fn rejected(&mut self, name: &str, reason: &dyn std::fmt::Display) {
        self.rejected += 1;
        self.note(name, reason);
        let Some(state) = self.state() else { return };
        if let Some((name, _)) = state.demands.names.remove_entry(name) {
            self.answered.push(name);
        }
    }

    /// Records a resource that was refused and replaced by a substitute until a valid one arrives:
    /// the push is refused, yet the type counts as received.
    pub fn replaced(&mut self, name: &ArcStr, reason: &dyn std::fmt::Display) {
        self.replaced += 1;
        self.note(name, reason);
        if let Some(state) = self.state() {
            state.known.insert(name.clone(), REPLACED_VERSION);
        }
    }

    fn note(&mut self, name: &str, reason: &dyn std::fmt::Display) {
        if self.error.len() < MAX_NACK_BYTES {
            let separator = if self.error.is_empty() { "" } else { "; " };
            self.error.push_str(&format!("{separator}{name}: {reason}"));
        }
    }

    /// Reports a removed resource, or a requested one that does not exist.
    pub fn removed(&mut self, name: &str, now: Instant) {
        let Some(state) = self.state() else { return };
        state.known.remove(name);
        if let Some(name) = state.demands.set_absent(name, now) {
            self.answered.push(name);
        }
    }

    /// Acknowledges or rejects the push.
    pub fn finish(mut self) -> Vec<Effect> {
        let refused = self.rejected + self.replaced;
        let complete = self.rejected == 0;
        let mut effects = Vec::new();
        let mut unsubscribe = Vec::new();
        if let Some(state) = self.state() {
            state.synced |= complete;
            unsubscribe = state.demands.evict();
        }
        let Self {
            client,
            kind,
            type_url,
            nonce,
            answered,
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
        effects.push(Effect::Send(Request {
            type_url: type_url.clone(),
            nonce: Some(nonce),
            error: (refused > 0).then_some(error),
            ..Request::default()
        }));
        if !unsubscribe.is_empty() {
            // A separate request: servers ignore subscription changes in an acknowledgement.
            effects.push(Effect::Send(Request {
                type_url,
                unsubscribe,
                ..Request::default()
            }));
        }
        if let Some(kind) = kind {
            effects.extend(
                answered
                    .into_iter()
                    .map(|name| Effect::Answered { kind, name }),
            );
        }
        let mut whole = client.types.iter().filter(|state| !state.config.on_demand);
        if !client.ready && whole.all(|state| state.synced) {
            client.ready = true;
            effects.push(Effect::Ready);
        }
        effects
    }
}

impl Demands {
    /// Caches a negative answer, and returns the name if it may have waiters.
    fn set_absent(&mut self, name: &str, now: Instant) -> Option<ArcStr> {
        let (name, _) = self.names.remove_entry(name)?;
        self.names.insert(name.clone(), Demand::AbsentSince(now));
        self.absent.push_back((now, name.clone()));
        Some(name)
    }

    /// Drops the oldest negative answers beyond the limit, and returns their names.
    fn evict(&mut self) -> Vec<ArcStr> {
        let mut evicted = Vec::new();
        while self.absent.len() > MAX_ABSENT {
            let Some((since, name)) = self.absent.pop_front() else {
                break;
            };
            if self.names.get(&name) == Some(&Demand::AbsentSince(since)) {
                self.names.remove(&name);
                evicted.push(name);
            }
        }
        evicted
    }
}
