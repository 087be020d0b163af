//! Rules without a backend: what to match and what to do, hook by hook.

use std::net::IpAddr;

use crate::spec::{Cgroup, marks};

/// An address family.
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

/// Position of a chain in the packet's path, in order of traversal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChainKind {
    /// Arriving packets, before connection tracking (the node's namespace only).
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
    /// Packets for the namespace itself, after translation.
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

/// One hook's rules, tried in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Hook and table of the chain.
    pub kind: ChainKind,
    /// Rules in order.
    pub rules: Vec<Rule>,
}

/// Rule whose actions apply if all matches hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// `None`: both families.
    pub family: Option<Family>,
    /// Matches, cheapest first.
    pub matches: Vec<Match>,
    /// The actions in order; only the last may end the chain.
    pub actions: Vec<Action>,
}

/// One condition on a packet.
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
    /// Input interface is loopback.
    InLoopback,
    /// Input interface by name.
    InInterface(String),
    /// The packet leaves over loopback.
    OutLoopback,
    /// Any source port but this (after `Tcp`, `TcpOpening` or `Udp`).
    NotSourcePort(u16),
    /// Destination port (after `Tcp`, `TcpOpening` or `Udp`).
    DestinationPort(u16),
    /// Any destination port but this.
    NotDestinationPort(u16),
    /// Source address; also restricts the rule to the address' family.
    Source(IpAddr),
    /// Destination is an address of the namespace itself, on any interface, including 127.0.0.0/8
    /// and ::1.
    LocalDestination,
    /// Destination is a loopback address of the rule's family.
    LoopbackDestination,
    /// Destination address is a member of the node's set of pods exempt on every port, of the rule's
    /// family.
    ExemptPod,
    /// Destination address and TCP port are a member of the node's set of probe ports, of the rule's
    /// family.
    ProbePort,
    /// The packet mark, under [`marks::MASK`].
    Mark(u32),
    /// Any packet mark but this, under [`marks::MASK`].
    NotMark(u32),
    /// The connection mark, under [`marks::MASK`].
    ConnectionMark(u32),
    /// The packet is in the reply direction of the connection.
    Reply,
    /// The connection has been seen in both directions.
    Established,
    /// The packet belongs to a socket of this namespace (not forwarded), of this user if one is given.
    LocalSocket(Option<u32>),
    /// Socket created in this cgroup or below it (unavailable after routing).
    SocketCgroup(Cgroup),
}

/// Verdict on a packet, or change of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Skips our remaining rules at this hook. Rules of others still apply.
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
    /// Conntrack zone of the packet, in its connection's original direction only.
    OriginalZone(u16),
    /// Counts the packet, drops it, and resets its connection (TCP only, and not before routing).
    Refuse,
    /// Counts the packet and drops it.
    Drop,
}

/// The desired rules and routes of one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// Families the rules are for, in order.
    pub families: Vec<Family>,
    /// Chains in order of kind, at most one of each, none empty.
    pub chains: Vec<Chain>,
    /// Whether replies to spoofed sources need [`policy_routing`].
    pub policy_routing: bool,
}

impl Ruleset {
    /// Returns the redirection without its guard chains, which reject connections that bypass it.
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
    /// Guard that is missing.
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
    /// The rule's preference.
    pub preference: u32,
    /// Packet mark that the rule matches.
    pub mark: u32,
    /// Mask of the packet mark.
    pub mask: u32,
    /// The table it sends to, with its one route: everything is local, on loopback.
    pub table: u32,
}

/// The policy routing of one family.
pub const fn policy_routing(family: Family) -> PolicyRouting {
    PolicyRouting {
        family,
        preference: marks::RULE_PREFERENCE,
        mark: marks::SPOOFED,
        mask: marks::MASK,
        table: marks::ROUTE_TABLE,
    }
}
