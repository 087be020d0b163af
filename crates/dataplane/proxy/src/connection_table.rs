//! Table of one pod's open connections. `/config_dump` lists them, a policy change re-checks them, and the drain's
//! deadline terminates them.
//!
//! A connection holds its [`TrackedConnection`] while it is open and waits on it for its termination, so that any
//! thread can terminate a connection that another thread owns.

use std::{
    collections::HashMap, future::poll_fn, net::SocketAddr, pin::Pin, sync::Arc, task::Poll,
};

use ambit_authz::Connection as Peer;
use ambit_codec::Authority;
use ambit_model::FailureReason;
use parking_lot::Mutex;
use serde::{Serialize, Serializer};
use tokio::sync::oneshot;

/// Reason why the proxy terminated a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TerminationReason {
    /// A changed policy or pod record denies the connection.
    #[error("connection closed due to policy change")]
    PolicyChange,
    /// The pod's record names a policy that was not received within the grace period.
    #[error("connection closed: a policy that the workload names is still not known")]
    MissingPolicy,
    /// A policy or binding requires the pod's waypoint, which the connection bypasses.
    #[error("connection closed: it does not come through the waypoint of the workload")]
    BypassesWaypoint,
    /// The connection bypasses the pod's waypoint, and the waypoint has a layer 7 rule that could reject its content.
    #[error(
        "connection closed: it does not come through the waypoint of the workload, and a layer 7 rule could concern it"
    )]
    WaypointRuleMayApply,
    /// The drain's deadline passed, or the pod's proxy was stopped without a drain.
    #[error("connection closed due to connection drain")]
    Drain,
}

impl TerminationReason {
    /// Returns the low-cardinality reason for metrics.
    pub fn reason(self) -> FailureReason {
        match self {
            Self::PolicyChange
            | Self::MissingPolicy
            | Self::BypassesWaypoint
            | Self::WaypointRuleMayApply => FailureReason::Deny,
            Self::Drain => FailureReason::Connect,
        }
    }
}

/// Direction of a connection, relative to the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Connection to the pod.
    Inbound,
    /// Connection from the pod.
    Outbound,
}

/// Path of a connection to the pod, which determines the policies that apply to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionPath {
    /// Direct connection, to which all of the pod's policies apply.
    #[default]
    Direct,
    /// Connection that the proxy forwards to the pod's waypoint. Only PeerAuthentication applies to it; the pod's
    /// other policies apply to the waypoint's own connection to the pod.
    ThroughWaypoint,
}

/// Connection details that `/config_dump` shows.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionDetails {
    /// Address of the client.
    pub src: SocketAddr,
    /// Address that the client dialled, or the authority of its tunnel.
    #[serde(serialize_with = "serialize_displayed")]
    pub original_dst: Authority,
    /// Address that the proxy connects to; an empty text in the dump until it is known.
    #[serde(serialize_with = "serialize_address")]
    pub actual_dst: Option<SocketAddr>,
    /// Protocol of the connection: `HBONE` or `TCP`.
    pub protocol: &'static str,
}

fn serialize_displayed<S: Serializer>(
    authority: &Authority,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(authority)
}

fn serialize_address<S: Serializer>(
    address: &Option<SocketAddr>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match address {
        Some(address) => serializer.collect_str(address),
        None => serializer.serialize_str(""),
    }
}

#[derive(Debug)]
struct ConnectionEntry {
    direction: Direction,
    details: ConnectionDetails,
    /// Attributes of the client that policies match; only for inbound connections.
    peer: Option<Peer>,
    path: ConnectionPath,
    termination: oneshot::Sender<TerminationReason>,
}

#[derive(Debug, Default)]
struct TableState {
    /// Boxed, since a hash map has room for up to twice as many entries as it contains.
    entries: HashMap<u64, Box<ConnectionEntry>>,
    next_id: u64,
}

/// Table of one pod's open connections. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ConnectionTable(Arc<Mutex<TableState>>);

/// Handle of a connection in the connection table. Dropping it removes the connection from the table.
#[derive(Debug)]
pub struct TrackedConnection {
    table: ConnectionTable,
    id: u64,
    termination: oneshot::Receiver<TerminationReason>,
}

/// Open connections of one pod in `/config_dump`.
#[derive(Debug, Default, Serialize)]
pub struct ConnectionDump {
    inbound: Vec<InboundEntry>,
    outbound: Vec<ConnectionDetails>,
    /// Connections from before the capture, which the proxy does not carry.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "clear")]
    pub pre_capture: Vec<ConnectionDetails>,
}

/// Inbound connection in `/config_dump`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct InboundEntry {
    #[serde(flatten)]
    shown: ConnectionDetails,
    /// Verified identity of the client; null without mTLS.
    src_identity: Option<String>,
}

impl ConnectionTable {
    /// Adds a connection to the pod to the table. Must be called before the connection is authorized, so that no
    /// policy change can fall between the two.
    pub fn add_inbound(&self, shown: ConnectionDetails, peer: Peer) -> TrackedConnection {
        self.track(Direction::Inbound, shown, Some(peer))
    }

    /// Adds an outbound connection to the table.
    pub fn add_outbound(&self, shown: ConnectionDetails) -> TrackedConnection {
        self.track(Direction::Outbound, shown, None)
    }

    fn track(
        &self,
        direction: Direction,
        shown: ConnectionDetails,
        peer: Option<Peer>,
    ) -> TrackedConnection {
        let (cut, receiver) = oneshot::channel();
        let mut inner = self.0.lock();
        let id = inner.next_id;
        inner.next_id += 1;
        inner.entries.insert(
            id,
            Box::new(ConnectionEntry {
                direction,
                details: shown,
                peer,
                path: ConnectionPath::default(),
                termination: cut,
            }),
        );
        TrackedConnection {
            table: self.clone(),
            id,
            termination: receiver,
        }
    }

    /// Returns the number of open connections.
    pub fn len(&self) -> usize {
        self.0.lock().entries.len()
    }

    /// Whether the table has no connections.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Terminates the connections to the pod for which `reason_to_close` returns a reason, and returns their number.
    /// `reason_to_close` is called without the lock: a connection that is added meanwhile is authorized afterwards,
    /// and thus by the current state.
    pub fn recheck(
        &self,
        mut reason_to_close: impl FnMut(&Peer, ConnectionPath) -> Option<TerminationReason>,
    ) -> usize {
        let peers: Vec<(u64, Peer, ConnectionPath)> = {
            let inner = self.0.lock();
            let peers = inner.entries.iter();
            peers
                .filter_map(|(id, entry)| Some((*id, entry.peer.clone()?, entry.path)))
                .collect()
        };
        let mut cut = 0;
        for (id, peer, course) in peers {
            if let Some(why) = reason_to_close(&peer, course) {
                cut += usize::from(self.terminate(id, why));
            }
        }
        cut
    }

    /// Terminates all connections, and returns their number.
    pub fn terminate_all(&self, why: TerminationReason) -> usize {
        let all = std::mem::take(&mut self.0.lock().entries);
        let count = all.len();
        for entry in all.into_values() {
            // One that is just ending by itself does not listen any more.
            let _ended = entry.termination.send(why);
        }
        count
    }

    /// Terminates the connection with this id. Returns whether it was still open.
    fn terminate(&self, id: u64, why: TerminationReason) -> bool {
        let entry = self.0.lock().entries.remove(&id);
        // One that is just ending by itself does not listen any more.
        entry.map(|entry| entry.termination.send(why)).is_some()
    }

    /// Lists the open connections for `/config_dump`.
    pub fn dump(&self) -> ConnectionDump {
        let mut dump = ConnectionDump::default();
        for entry in self.0.lock().entries.values() {
            let shown = entry.details.clone();
            let source = entry.peer.as_ref().and_then(|peer| peer.source.as_ref());
            match entry.direction {
                Direction::Inbound => dump.inbound.push(InboundEntry {
                    shown,
                    src_identity: source.map(ToString::to_string),
                }),
                Direction::Outbound => dump.outbound.push(shown),
            }
        }
        dump.inbound.sort_by_key(|arrived| arrived.shown.src);
        dump.outbound.sort_by_key(|shown| shown.src);
        dump
    }
}

impl TrackedConnection {
    /// Runs `work` unless the connection is terminated first. `work` is passed pinned, since a copy in the future
    /// would double the memory of a connection.
    ///
    /// # Errors
    ///
    /// The reason of the termination.
    pub fn run_until_terminated<T>(
        &mut self,
        mut work: Pin<&mut impl Future<Output = T>>,
    ) -> impl Future<Output = Result<T, TerminationReason>> {
        poll_fn(move |cx| {
            if let Poll::Ready(cut) = Pin::new(&mut self.termination).poll(cx) {
                return Poll::Ready(Err(cut.unwrap_or(TerminationReason::Drain)));
            }
            work.as_mut().poll(cx).map(Ok)
        })
    }

    /// Returns a handle that updates the entry while the connection is being served.
    pub fn handle(&self) -> ConnectionHandle {
        ConnectionHandle {
            table: self.table.clone(),
            id: self.id,
        }
    }
}

/// Handle that updates a connection's entry in the connection table.
#[derive(Clone, Debug)]
pub struct ConnectionHandle {
    table: ConnectionTable,
    id: u64,
}

impl ConnectionHandle {
    /// Records the actual destination and the protocol (`HBONE`, `TCP`).
    pub fn record_destination(&self, actual_dst: SocketAddr, protocol: &'static str) {
        if let Some(entry) = self.table.0.lock().entries.get_mut(&self.id) {
            entry.details.actual_dst = Some(actual_dst);
            entry.details.protocol = protocol;
        }
    }

    /// Records how the connection reaches the pod. Must be called before the connection is authorized.
    pub fn set_path(&self, course: ConnectionPath) {
        if let Some(entry) = self.table.0.lock().entries.get_mut(&self.id) {
            entry.path = course;
        }
    }
}

impl Drop for TrackedConnection {
    fn drop(&mut self) {
        self.table.0.lock().entries.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    fn shown(port: u16) -> ConnectionDetails {
        ConnectionDetails {
            src: ([10, 0, 0, 1], port).into(),
            original_dst: Authority::Ip(([10, 0, 0, 2], 80).into()),
            actual_dst: None,
            protocol: "TCP",
        }
    }

    fn peer(port: u16) -> Peer {
        Peer {
            source: None,
            source_ip: [10, 0, 0, 1].into(),
            destination: ([10, 0, 0, 2], port).into(),
        }
    }

    #[tokio::test]
    async fn recheck_terminates_only_denied_connections() {
        let list = ConnectionTable::default();
        let mut allowed = list.add_inbound(shown(1), peer(80));
        let mut denied = list.add_inbound(shown(2), peer(81));
        let mut outgoing = list.add_outbound(shown(3));
        let reason_to_close = |peer: &Peer, _| {
            (peer.destination.port() != 80).then_some(TerminationReason::PolicyChange)
        };
        assert_eq!(list.recheck(reason_to_close), 1);
        let pending = std::future::pending::<()>();
        assert_eq!(
            denied.run_until_terminated(pin!(pending)).await,
            Err(TerminationReason::PolicyChange)
        );
        assert_eq!(allowed.run_until_terminated(pin!(async { 1 })).await, Ok(1));
        assert_eq!(
            outgoing.run_until_terminated(pin!(async { 1 })).await,
            Ok(1)
        );
        assert_eq!(list.len(), 2);
    }

    #[test]
    fn dumps_have_the_proved_identities_of_callers() {
        let list = ConnectionTable::default();
        let identity = "spiffe://cluster.local/ns/shop/sa/front";
        let proved = Peer {
            source: identity.parse().ok(),
            ..peer(80)
        };
        let _open = (
            list.add_inbound(shown(2), peer(80)),
            list.add_inbound(shown(1), proved),
            list.add_outbound(shown(3)),
        );
        let dump = serde_json::to_value(list.dump()).unwrap();
        let shown = |src: &str, more: serde_json::Value| {
            let mut all = serde_json::json!({
                "src": src, "originalDst": "10.0.0.2:80", "actualDst": "", "protocol": "TCP"
            });
            all.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            all
        };
        let expected = serde_json::json!({
            "inbound": [
                shown("10.0.0.1:1", serde_json::json!({ "srcIdentity": identity })),
                shown("10.0.0.1:2", serde_json::json!({ "srcIdentity": null })),
            ],
            "outbound": [shown("10.0.0.1:3", serde_json::json!({}))],
        });
        assert_eq!(dump, expected);
    }

    #[tokio::test]
    async fn ended_connections_are_off_the_list() {
        let list = ConnectionTable::default();
        let first = list.add_outbound(shown(1));
        let mut second = list.add_outbound(shown(2));
        second
            .handle()
            .record_destination(([10, 0, 0, 9], 15008).into(), "HBONE");
        assert_eq!(list.dump().outbound.len(), 2);
        let dump = serde_json::to_value(list.dump()).unwrap();
        assert_eq!(dump["outbound"][1]["actualDst"], "10.0.0.9:15008");
        drop(first);
        assert_eq!(list.terminate_all(TerminationReason::Drain), 1);
        assert_eq!(
            second
                .run_until_terminated(pin!(std::future::pending::<()>()))
                .await,
            Err(TerminationReason::Drain)
        );
        drop(second);
        assert!(list.is_empty());
    }
}
