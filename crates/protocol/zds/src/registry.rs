//! Distributes the agent's orders to all connected node proxies (an old and a new one during a rollout).
//!
//! A pod is added at the newest proxy that has sent its hello, and deleted at every proxy. When the newest proxy
//! disconnects and an older one is left, the older one is sent the pods that it lacks. Callers choose an [`OrderId`]
//! for each order and get its outcome within [`DELIVERY_TIMEOUT`].

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use crate::{
    agent::{AgentEffect, AgentSide, CloseReason, ExpectedRecord},
    message::{Ack, PodUid, Request, WorkloadInfo},
};

/// Timeout of an order, including the wait for a proxy to connect.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Number of an accepted connection. Newer connections have larger numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// Number of an order, chosen by its caller and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OrderId(pub u64);

/// Event that the caller passes to the [`Registry`].
#[derive(Debug)]
pub enum RegistryEvent<N> {
    /// A node proxy has opened this connection.
    Accepted(ConnectionId),
    /// The node proxy on this connection has sent its hello.
    Hello(ConnectionId),
    /// The node proxy on this connection has acknowledged a request.
    Ack(ConnectionId, Ack),
    /// The node proxy has sent a record of another kind than [`Registry::expected_record`] returns.
    Unexpected(ConnectionId, String),
    /// The connection was closed.
    Closed(ConnectionId),
    /// Order to serve a pod in a network namespace.
    Add {
        /// Id of the order, under which its outcome is reported once a proxy serves the pod.
        order_id: OrderId,
        /// UID of the pod.
        uid: PodUid,
        /// Description of the pod.
        info: WorkloadInfo,
        /// Network namespace of the pod.
        netns: N,
    },
    /// Order to continue serving a pod if a proxy serves it. For pods that an earlier agent process enrolled and whose
    /// network namespace is unknown.
    KeepIfServed(PodUid),
    /// Order to stop serving a pod.
    Del {
        /// Id of the order, under which its outcome is reported once every proxy has stopped serving the pod.
        order_id: OrderId,
        /// UID of the pod.
        uid: PodUid,
    },
    /// Time has passed: the time of [`Registry::deadline`] is reached.
    Tick,
}

/// Effect of an event on the registry, which the caller must carry out in order.
#[derive(Debug, PartialEq, Eq)]
pub enum RegistryEffect<N> {
    /// Sends a request on a connection.
    Send(ConnectionId, Request, Option<N>),
    /// Closes a connection. [`RegistryEvent::Closed`] need not follow.
    Close(ConnectionId, CloseReason),
    /// Reports the outcome of an order.
    OrderCompleted(OrderId, Result<(), OrderError>),
    /// Reports, for the log, that a proxy rejected the request for a pod with this error.
    Refused(ConnectionId, PodUid, String),
    /// Reports that a proxy has acknowledged the whole snapshot.
    Synced(ConnectionId),
}

/// Reason why an order failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// No proxy is connected.
    #[error("no node proxy is connected; is it running and ready on this node?")]
    NoProxy,
    /// The proxy acknowledged the request with this error.
    #[error("the node proxy refused it: {0}")]
    Refused(String),
    /// The connected proxy did not acknowledge the request in time.
    #[error("the node proxy did not answer within {DELIVERY_TIMEOUT:?}")]
    NoAcknowledgement,
    /// The pod was deleted before the order completed, or added with a newer network namespace.
    #[error("the pod was withdrawn meanwhile")]
    Withdrawn,
}

impl OrderError {
    /// Whether the same order could succeed later.
    pub fn is_retryable(&self) -> bool {
        !matches!(self, Self::Withdrawn)
    }
}

#[derive(Debug)]
struct DesiredPod<N> {
    info: WorkloadInfo,
    netns: Option<N>,
}

#[derive(Debug)]
struct ProxyConnection<N> {
    agent_side: AgentSide<N>,
    /// Pods that were sent to this proxy, with their network namespaces.
    sent_pods: BTreeMap<PodUid, N>,
}

#[derive(Debug)]
enum OrderKind {
    Add,
    /// Deletion of a pod; the connections are those that have not acknowledged it yet.
    Del(BTreeSet<ConnectionId>),
}

#[derive(Debug)]
struct OpenOrder {
    uid: PodUid,
    deadline: Instant,
    kind: OrderKind,
}

/// Pods that must be served on this node, connected node proxies, and pending orders.
#[derive(Debug)]
pub struct Registry<N> {
    pods: BTreeMap<PodUid, DesiredPod<N>>,
    connections: BTreeMap<ConnectionId, ProxyConnection<N>>,
    open_orders: BTreeMap<OrderId, OpenOrder>,
}

impl<N> Default for Registry<N> {
    fn default() -> Self {
        Self {
            pods: BTreeMap::new(),
            connections: BTreeMap::new(),
            open_orders: BTreeMap::new(),
        }
    }
}

impl<N: Clone + PartialEq> Registry<N> {
    /// Creates a registry without pods and proxies.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of connected proxies that have sent their hello.
    pub fn connected_proxies(&self) -> usize {
        self.connections
            .values()
            .filter(|link| link.agent_side.is_open())
            .count()
    }

    /// Returns the kind of the record that is expected next on a connection.
    pub fn expected_record(&self, connection: ConnectionId) -> ExpectedRecord {
        self.connections
            .get(&connection)
            .map_or(ExpectedRecord::None, |link| {
                link.agent_side.expected_record()
            })
    }

    /// Returns the time at which the next [`RegistryEvent::Tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        let links = self
            .connections
            .values()
            .filter_map(|link| link.agent_side.deadline());
        links
            .chain(self.open_orders.values().map(|open| open.deadline))
            .min()
    }

    /// Handles an event. The caller must carry out the returned effects in order.
    pub fn on_event(&mut self, event: RegistryEvent<N>, now: Instant) -> Vec<RegistryEffect<N>> {
        let mut effects = Vec::new();
        match event {
            RegistryEvent::Accepted(connection) => {
                let link = ProxyConnection {
                    agent_side: AgentSide::new(now),
                    sent_pods: BTreeMap::new(),
                };
                self.connections.insert(connection, link);
            }
            RegistryEvent::Hello(connection) => self.on_hello(connection, now, &mut effects),
            RegistryEvent::Ack(connection, ack) => {
                self.apply_agent_effects(connection, now, &mut effects, |side| {
                    side.on_ack(ack, now)
                });
            }
            RegistryEvent::Unexpected(connection, what) => {
                self.apply_agent_effects(connection, now, &mut effects, |side| {
                    side.on_unexpected(what)
                });
            }
            RegistryEvent::Closed(connection) => {
                self.on_connection_closed(connection, now, &mut effects)
            }
            RegistryEvent::Add {
                order_id: ticket,
                uid,
                info,
                netns,
            } => {
                self.add(ticket, uid, info, netns, now, &mut effects);
            }
            RegistryEvent::KeepIfServed(uid) => {
                let unknown = || DesiredPod {
                    info: WorkloadInfo::default(),
                    netns: None,
                };
                self.pods.entry(uid).or_insert_with(unknown);
            }
            RegistryEvent::Del {
                order_id: ticket,
                uid,
            } => self.del(ticket, uid, now, &mut effects),
            RegistryEvent::Tick => self.on_tick(now, &mut effects),
        }
        effects
    }

    fn newest_connection(&self) -> Option<ConnectionId> {
        self.connections
            .iter()
            .rev()
            .find(|(_, link)| link.agent_side.is_open())
            .map(|(id, _)| *id)
    }

    fn on_hello(
        &mut self,
        connection: ConnectionId,
        now: Instant,
        effects: &mut Vec<RegistryEffect<N>>,
    ) {
        let snapshot: Vec<_> = self
            .pods
            .iter()
            .map(|(uid, pod)| pod_request(uid, pod))
            .collect();
        if let Some(link) = self.connections.get_mut(&connection) {
            let named = self
                .pods
                .iter()
                .filter_map(|(uid, pod)| Some((uid.clone(), pod.netns.clone()?)));
            link.sent_pods = named.collect();
        }
        self.apply_agent_effects(connection, now, effects, |side| {
            side.on_hello(snapshot, now)
        });
    }

    fn add(
        &mut self,
        ticket: OrderId,
        uid: PodUid,
        info: WorkloadInfo,
        netns: N,
        now: Instant,
        effects: &mut Vec<RegistryEffect<N>>,
    ) {
        let before = self.pods.insert(
            uid.clone(),
            DesiredPod {
                info: info.clone(),
                netns: Some(netns.clone()),
            },
        );
        if before
            .and_then(|pod| pod.netns)
            .is_some_and(|old| old != netns)
        {
            self.withdraw_add_orders(&uid, effects);
        }
        let open = OpenOrder {
            uid: uid.clone(),
            deadline: now + DELIVERY_TIMEOUT,
            kind: OrderKind::Add,
        };
        self.open_orders.insert(ticket, open);
        if let Some(newest) = self.newest_connection() {
            self.send_add(newest, uid, info, netns, now, effects);
        }
    }

    fn send_add(
        &mut self,
        connection: ConnectionId,
        uid: PodUid,
        info: WorkloadInfo,
        netns: N,
        now: Instant,
        effects: &mut Vec<RegistryEffect<N>>,
    ) {
        if let Some(link) = self.connections.get_mut(&connection) {
            link.sent_pods.insert(uid.clone(), netns.clone());
        }
        let request = Request::Add {
            uid,
            info: Some(info),
        };
        self.apply_agent_effects(connection, now, effects, |side| {
            side.enqueue(request, Some(netns), now)
        });
    }

    fn del(
        &mut self,
        ticket: OrderId,
        uid: PodUid,
        now: Instant,
        effects: &mut Vec<RegistryEffect<N>>,
    ) {
        self.pods.remove(&uid);
        self.withdraw_add_orders(&uid, effects);
        let ids: BTreeSet<_> = self
            .connections
            .iter()
            .filter(|(_, link)| link.agent_side.is_open())
            .map(|(id, _)| *id)
            .collect();
        if ids.is_empty() {
            // Every connected proxy that serves it will stop because of the snapshot.
            effects.push(RegistryEffect::OrderCompleted(ticket, Ok(())));
            return;
        }
        let order = OrderKind::Del(ids.clone());
        self.open_orders.insert(
            ticket,
            OpenOrder {
                uid: uid.clone(),
                deadline: now + DELIVERY_TIMEOUT,
                kind: order,
            },
        );
        for connection in ids {
            if let Some(link) = self.connections.get_mut(&connection) {
                link.sent_pods.remove(&uid);
            }
            let request = Request::Del { uid: uid.clone() };
            self.apply_agent_effects(connection, now, effects, |side| {
                side.enqueue(request, None, now)
            });
        }
    }

    /// Ends the pending orders to add a pod with [`DeliverError::Withdrawn`], since its desired state has changed.
    fn withdraw_add_orders(&mut self, uid: &PodUid, effects: &mut Vec<RegistryEffect<N>>) {
        self.complete_orders(effects, |open| {
            (open.uid == *uid && matches!(open.kind, OrderKind::Add))
                .then_some(Err(OrderError::Withdrawn))
        });
    }

    /// Passes an input to one connection's state machine, and converts its effects to effects of the registry.
    fn apply_agent_effects(
        &mut self,
        connection: ConnectionId,
        now: Instant,
        effects: &mut Vec<RegistryEffect<N>>,
        act: impl FnOnce(&mut AgentSide<N>) -> Vec<AgentEffect<N>>,
    ) {
        let Some(link) = self.connections.get_mut(&connection) else {
            return;
        };
        for effect in act(&mut link.agent_side) {
            match effect {
                AgentEffect::Send(request, netns) => {
                    effects.push(RegistryEffect::Send(connection, request, netns));
                }
                AgentEffect::Acknowledged(request, netns, ack) => {
                    self.on_acknowledged(connection, &request, netns.as_ref(), ack, effects);
                }
                AgentEffect::Close(reason) => {
                    effects.push(RegistryEffect::Close(connection, reason));
                    self.on_connection_closed(connection, now, effects);
                }
            }
        }
    }

    fn on_acknowledged(
        &mut self,
        connection: ConnectionId,
        request: &Request,
        netns: Option<&N>,
        ack: Ack,
        effects: &mut Vec<RegistryEffect<N>>,
    ) {
        match request {
            Request::Add { uid, .. } => {
                if let Err(text) = &ack {
                    let refused = RegistryEffect::Refused(connection, uid.clone(), text.clone());
                    effects.push(refused);
                }
                // An acknowledgement for an older namespace does not settle the newer add.
                if self
                    .pods
                    .get(uid)
                    .is_some_and(|pod| pod.netns.as_ref() == netns)
                {
                    let result = ack.map_err(OrderError::Refused);
                    self.complete_orders(effects, |open| {
                        (open.uid == *uid && matches!(open.kind, OrderKind::Add))
                            .then(|| result.clone())
                    });
                }
            }
            // A delete that fails counts like one that succeeds: the proxy has received it.
            Request::Del { uid } => self.acknowledge_deletion(connection, Some(uid), effects),
            Request::Keep { uid } => {
                if let Err(text) = ack {
                    effects.push(RegistryEffect::Refused(connection, uid.clone(), text));
                }
            }
            Request::SnapshotSent => effects.push(RegistryEffect::Synced(connection)),
        }
    }

    /// Stops waiting for a connection to acknowledge the deletion of `uid`; or all deletions if `None`, since the
    /// connection is closed. Completes deletions that every connection has acknowledged.
    fn acknowledge_deletion(
        &mut self,
        connection: ConnectionId,
        uid: Option<&PodUid>,
        effects: &mut Vec<RegistryEffect<N>>,
    ) {
        for open in self.open_orders.values_mut() {
            if let OrderKind::Del(missing) = &mut open.kind
                && uid.is_none_or(|uid| open.uid == *uid)
            {
                missing.remove(&connection);
            }
        }
        self.complete_orders(effects, |open| match &open.kind {
            OrderKind::Del(missing) if missing.is_empty() => Some(Ok(())),
            _ => None,
        });
    }

    fn complete_orders(
        &mut self,
        effects: &mut Vec<RegistryEffect<N>>,
        mut outcome: impl FnMut(&OpenOrder) -> Option<Result<(), OrderError>>,
    ) {
        self.open_orders.retain(|ticket, open| match outcome(open) {
            Some(result) => {
                effects.push(RegistryEffect::OrderCompleted(*ticket, result));
                false
            }
            None => true,
        });
    }

    fn on_connection_closed(
        &mut self,
        connection: ConnectionId,
        now: Instant,
        effects: &mut Vec<RegistryEffect<N>>,
    ) {
        let was_newest = self
            .newest_connection()
            .is_none_or(|newest| newest <= connection);
        if self.connections.remove(&connection).is_none() {
            return;
        }
        self.acknowledge_deletion(connection, None, effects);
        if was_newest && let Some(newest) = self.newest_connection() {
            self.send_missing_pods(newest, now, effects);
        }
    }

    /// Sends a proxy the pods that it was not sent while a newer proxy was connected.
    fn send_missing_pods(
        &mut self,
        connection: ConnectionId,
        now: Instant,
        effects: &mut Vec<RegistryEffect<N>>,
    ) {
        let Some(link) = self.connections.get(&connection) else {
            return;
        };
        let missed: Vec<_> = self
            .pods
            .iter()
            .filter_map(|(uid, pod)| {
                let netns = pod.netns.clone()?;
                let sent = link.sent_pods.get(uid) == Some(&netns);
                let awaited = self
                    .open_orders
                    .values()
                    .any(|open| open.uid == *uid && matches!(open.kind, OrderKind::Add));
                (awaited || !sent).then(|| (uid.clone(), pod.info.clone(), netns))
            })
            .collect();
        for (uid, info, netns) in missed {
            self.send_add(connection, uid, info, netns, now, effects);
        }
    }

    fn on_tick(&mut self, now: Instant, effects: &mut Vec<RegistryEffect<N>>) {
        let overdue: Vec<_> = self
            .connections
            .iter()
            .filter(|(_, link)| link.agent_side.deadline().is_some_and(|until| until <= now))
            .map(|(id, _)| *id)
            .collect();
        for connection in overdue {
            self.apply_agent_effects(connection, now, effects, |side| side.on_tick(now));
        }
        let nobody = self.newest_connection().is_none();
        self.complete_orders(effects, |open| {
            let error = if nobody {
                OrderError::NoProxy
            } else {
                OrderError::NoAcknowledgement
            };
            (open.deadline <= now).then_some(Err(error))
        });
    }
}

fn pod_request<N: Clone>(uid: &PodUid, pod: &DesiredPod<N>) -> (Request, Option<N>) {
    match &pod.netns {
        Some(netns) => {
            let info = Some(pod.info.clone());
            (
                Request::Add {
                    uid: uid.clone(),
                    info,
                },
                Some(netns.clone()),
            )
        }
        None => (Request::Keep { uid: uid.clone() }, None),
    }
}

#[cfg(test)]
mod tests;
