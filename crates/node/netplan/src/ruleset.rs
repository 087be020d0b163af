//! Redirection rules independent of a backend: matches and actions, chain by chain.

use std::net::IpAddr;

use crate::spec::{Cgroup, marks};

/// IP address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// Internet Protocol version 4.
    V4,
    /// Internet Protocol version 6.
    V6,
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// Kind of a chain: its hook and table, in the order in which packets traverse them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChainKind {
    /// Arriving packets, before connection tracking.
    RawPrerouting,
    /// Local packets, before connection tracking.
    RawOutput,
    /// Local output, where a changed mark triggers rerouting.
    RouteOutput,
    /// First packet of an arriving connection.
    NatPrerouting,
    /// First packet of a local connection.
    NatOutput,
    /// First packet of a leaving connection (the node's namespace only).
    NatPostrouting,
    /// Packets addressed to the namespace itself, after translation.
    GuardInput,
    /// Packets that pass through the namespace, after translation.
    GuardForward,
    /// Local packets, after translation.
    GuardOutput,
}

impl ChainKind {
    /// Whether the chain rejects packets that were not redirected. Such chains are added after the redirects and
    /// removed before them, so that a SYN never meets a guard whose redirect it has missed.
    pub const fn is_guard(self) -> bool {
        matches!(
            self,
            Self::GuardInput | Self::GuardForward | Self::GuardOutput
        )
    }
}

/// Rules of one netfilter hook, evaluated in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Hook and table of the chain.
    pub kind: ChainKind,
    /// Rules in order.
    pub rules: Vec<Rule>,
}

/// Rule whose actions apply to a packet if all matches hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Address family that the rule applies to; `None`: both.
    pub family: Option<Family>,
    /// Matches, cheapest first.
    pub matches: Vec<Match>,
    /// Actions in order; only the last may end the chain.
    pub actions: Vec<Action>,
}

/// Condition on a packet, or on its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// The packet is TCP.
    Tcp,
    /// The packet is UDP.
    Udp,
    /// The packet opens a TCP connection (SYN without ACK). Packets of connections that existed before the rules never
    /// match, which is what keeps such connections alive.
    TcpOpening,
    /// The packet is TCP, its flags can be read, and SYN is not among them.
    TcpWithoutSyn,
    /// The packet is TCP, its flags can be read, and it opens no connection: no SYN, or SYN with ACK.
    TcpNotOpening,
    /// The packet is TCP and accepts a connection (SYN with ACK).
    TcpSynAck,
    /// The packet's input interface is loopback.
    InLoopback,
    /// The packet's input interface has this name.
    InInterface(String),
    /// The packet leaves over loopback.
    OutLoopback,
    /// The source port is any but this one (after `Tcp`, `TcpOpening` or `Udp`).
    NotSourcePort(u16),
    /// The destination port is this one (after `Tcp`, `TcpOpening` or `Udp`).
    DestinationPort(u16),
    /// The destination port is any but this one.
    NotDestinationPort(u16),
    /// The source address is this one; also restricts the rule to the address' family.
    Source(IpAddr),
    /// The destination is an address of the namespace itself, on any interface, including 127.0.0.0/8 and ::1.
    LocalDestination,
    /// The destination is a loopback address of the rule's family.
    LoopbackDestination,
    /// The destination address is in the node's set of pods whose every port is exempt, of the rule's family.
    ExemptPod,
    /// Destination address and TCP port are in the node's set of probe ports, of the rule's family.
    ProbePort,
    /// The packet mark is this one, under [`marks::MASK`].
    Mark(u32),
    /// The packet mark is any but this one, under [`marks::MASK`].
    NotMark(u32),
    /// The connection mark is this one, under [`marks::MASK`].
    ConnectionMark(u32),
    /// The packet is in the reply direction of the connection.
    Reply,
    /// Connection tracking has seen packets of the connection in both directions.
    Established,
    /// The packet belongs to a socket of this namespace (not forwarded), of this user if one is given.
    LocalSocket(Option<u32>),
    /// The packet's socket was created in this cgroup or below it (unavailable after routing).
    SocketCgroup(Cgroup),
    /// The packet belongs to a connection of a socket of this namespace that has this mark, under [`marks::MASK`].
    SocketMark(u32),
}

/// Action on a matching packet or its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Skips Ambit's remaining rules at this hook. Rules of other programs still apply.
    Exempt,
    /// Redirects the connection to this port of the namespace.
    Redirect(u16),
    /// Counts the connection and rewrites its source address.
    SourceNat(IpAddr),
    /// Sets the connection mark under [`marks::MASK`].
    SetConnectionMark(u32),
    /// Sets the packet's mark under [`marks::MASK`].
    SetMark(u32),
    /// Copies the connection mark to the packet.
    RestoreMark,
    /// Sets the conntrack zone of the packet, for its connection's original direction only.
    OriginalZone(u16),
    /// Excludes the packet from connection tracking, if it does not know the packet yet (before it only).
    NoTrack,
    /// Counts the packet, drops it, and answers it with a TCP reset (TCP only, and not before routing).
    Refuse,
    /// Counts the packet and drops it.
    Drop,
}

/// Desired rules and routes of one network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// Enabled address families, in order.
    pub families: Vec<Family>,
    /// Chains sorted by kind, at most one of each kind, none empty.
    pub chains: Vec<Chain>,
    /// Whether replies to spoofed sources need the routes of [`policy_routing`].
    pub policy_routing: bool,
}

impl Ruleset {
    /// Returns the ruleset without its guard chains, which reject connections that bypass the redirection.
    #[must_use]
    pub fn without_guards(&self) -> Self {
        let is_guard = |kind| {
            matches!(
                kind,
                ChainKind::GuardInput | ChainKind::GuardForward | ChainKind::GuardOutput
            )
        };
        let mut without = self.clone();
        without.chains.retain(|chain| !is_guard(chain.kind));
        without
    }
}

/// State of the inbound guard in a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InboundGuard {
    /// The pod has no inbound guard.
    Missing,
    /// The guard accepts packets of connections that connection tracking does not know: the guard of
    /// [`plan_capturing`](crate::plan_capturing), and of earlier agents.
    AdmitsUnknown,
    /// The guard accepts packets of known connections only.
    KnownOnly,
}

/// The policy rule and the local route that bring replies to spoofed sources back to the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyRouting {
    /// Address family of the rule.
    pub family: Family,
    /// Preference of the policy rule.
    pub preference: u32,
    /// Packet mark that the rule matches.
    pub mark: u32,
    /// Mask of the packet mark.
    pub mask: u32,
    /// Routing table of the policy rule; its one route delivers every destination locally, over loopback.
    pub table: u32,
    /// Whether the policy rule matches only packets that begin in the namespace.
    pub is_own_only: bool,
    /// Source address that the route gives connections without one.
    pub source: Option<IpAddr>,
}

/// Returns the policy rule and local route of one address family.
pub const fn policy_routing(family: Family) -> PolicyRouting {
    PolicyRouting {
        family,
        preference: marks::RULE_PREFERENCE,
        mark: marks::SPOOFED,
        mask: marks::MASK,
        table: marks::ROUTE_TABLE,
        is_own_only: false,
        source: None,
    }
}

/// Returns the policy rule and local route that bring packets of sockets captured by BPF programs to the proxy, of the
/// family of `source`, an address of the pod: the source of connections that are not bound to one.
pub const fn outbound_routing(source: IpAddr) -> PolicyRouting {
    PolicyRouting {
        family: match source {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        },
        preference: marks::OUTBOUND_RULE_PREFERENCE,
        mark: marks::OUTBOUND,
        mask: marks::MASK,
        table: marks::OUTBOUND_ROUTE_TABLE,
        is_own_only: true,
        source: Some(source),
    }
}
