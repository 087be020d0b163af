//! nftables rules as the kernel represents them: tables of chains of expressions, and the differences between two
//! tables.
//!
//! Expressions are values here; the netlink code encodes their bytes. All data passes through one
//! register, so expressions do not name registers. [`Expr::PortAfterAddress`] alone fills a second one.

mod diff;
mod lower;

use std::{collections::BTreeMap, fmt, net::IpAddr};

pub use diff::{Change, apply, diff, steps};
pub use lower::{
    HOST_TABLE, POD_TABLE, bridge_table, chain_name, has_bpf_guards, host_members, host_table,
    inbound_guard, lower, set_name,
};

use crate::ruleset::Family;

/// nftables table, of family inet unless stated otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Chains of the table by name.
    pub chains: BTreeMap<String, TableChain>,
    /// Sets of the table by name.
    pub sets: BTreeMap<String, Set>,
}

/// nftables chain with its rules in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableChain {
    /// Netfilter hook of the chain; `None`: only other chains jump to it.
    pub hook: Option<Hook>,
    /// Rules in order, each a list of expressions.
    pub rules: Vec<Vec<Expr>>,
}

/// Netfilter hook of a base chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Chain type: `filter`, `route` or `nat`.
    pub kind: String,
    /// Number of the hook (`NF_INET_*`).
    pub number: u32,
    /// Priority at the hook; lower values are evaluated earlier.
    pub priority: i32,
    /// Whether the chain's policy is accept, rather than drop.
    pub accepts: bool,
}

/// nftables set of addresses, or of addresses with ports, each with a comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Type of the members' keys.
    pub key: SetKey,
    /// Members of the set, with their comments.
    pub members: BTreeMap<SetMember, String>,
}

/// Key type of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetKey {
    /// Family of the members' addresses.
    pub family: Family,
    /// Whether members have a TCP port besides the address.
    pub has_port: bool,
}

/// Member of an nftables set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SetMember {
    /// Address of the member.
    pub ip: IpAddr,
    /// TCP port; `None` in sets without ports.
    pub port: Option<u16>,
}

impl SetMember {
    /// Returns the key type of the set that the member belongs to.
    pub const fn key(self) -> SetKey {
        SetKey {
            family: match self.ip {
                IpAddr::V4(_) => Family::V4,
                IpAddr::V6(_) => Family::V6,
            },
            has_port: self.port.is_some(),
        }
    }
}

impl fmt::Display for SetMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{} . {port}", self.ip),
            None => write!(f, "{}", self.ip),
        }
    }
}

/// nftables expression of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// Loads a property of the packet into the register.
    Meta(MetaKey),
    /// Sets the packet's mark from the register.
    SetMark,
    /// Loads bytes of a packet header into the register.
    Payload {
        /// Header that the bytes are in.
        base: PayloadBase,
        /// Offset of the first byte.
        offset: u32,
        /// Number of bytes.
        len: u32,
    },
    /// Loads the TCP destination port into the register behind an address of this family, for a lookup of address and
    /// port.
    PortAfterAddress(Family),
    /// Continues with the rule only if the comparison of the register holds.
    Cmp {
        /// Whether the register must equal `data`, rather than differ from it.
        equal: bool,
        /// Data that the register is compared with.
        data: Vec<u8>,
    },
    /// Replaces the register by `register & mask ^ xor`.
    Bitwise {
        /// Mask of the bits to preserve.
        mask: Vec<u8>,
        /// Bits to flip after masking.
        xor: Vec<u8>,
    },
    /// Loads a property of the packet's conntrack entry into the register.
    Ct(CtKey),
    /// Sets the connection mark from the register.
    SetCtMark,
    /// Sets the conntrack zone from the register, for the original direction only.
    SetOriginalZone,
    /// Excludes the packet from connection tracking.
    NoTrack,
    /// Loads constant data into the register.
    Data(Vec<u8>),
    /// Accepts the packet and ends the evaluation of the chain.
    Accept,
    /// Redirects the packet to this namespace, at the port in the register.
    Redirect,
    /// Translates the source address to the one in the register (SNAT).
    SourceNat(Family),
    /// Continues with the rule only if the register's value is a member of this set.
    Lookup(String),
    /// Loads the id of the socket's cgroup at this level of the hierarchy into the register.
    SocketCgroup(u32),
    /// Loads the mark of the packet's socket into the register; the rule ends where there is none.
    SocketMark,
    /// Loads the destination's address type (`RTN_*`) into the register.
    DestinationType,
    /// Counts the packets that reach this expression. Comparisons of tables ignore the count.
    Counter,
    /// Drops the packet and answers it with a TCP reset.
    Reset,
    /// Drops the packet.
    Drop,
    /// Expression from the kernel that Ambit never writes.
    Foreign {
        /// Name of the expression.
        name: String,
        /// Attributes of the expression in netlink encoding.
        data: Vec<u8>,
    },
}

/// Property of a packet that can be loaded (`NFT_META_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaKey {
    /// Mark of the packet.
    Mark,
    /// Index of the input interface.
    InIndex,
    /// Index of the output interface.
    OutIndex,
    /// Name of the input interface.
    InName,
    /// UID of the owner of the packet's socket.
    SocketUser,
    /// Address family of the packet (`NFPROTO_*`).
    Family,
    /// Transport protocol number.
    Protocol,
    /// EtherType of the frame, for bridges, whose frames may carry any protocol.
    EtherType,
}

impl MetaKey {
    /// All packet properties that can be loaded.
    pub const ALL: [Self; 8] = [
        Self::EtherType,
        Self::Mark,
        Self::InIndex,
        Self::OutIndex,
        Self::InName,
        Self::SocketUser,
        Self::Family,
        Self::Protocol,
    ];

    /// Returns the kernel's number, `NFT_META_*`.
    pub const fn number(self) -> u32 {
        match self {
            Self::EtherType => 1,
            Self::Mark => 3,
            Self::InIndex => 4,
            Self::OutIndex => 5,
            Self::InName => 6,
            Self::SocketUser => 10,
            Self::Family => 15,
            Self::Protocol => 16,
        }
    }
}

/// Packet header from which bytes are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadBase {
    /// Network header: IPv4 or IPv6.
    Network,
    /// Transport header: TCP or UDP.
    Transport,
}

impl PayloadBase {
    /// Returns the kernel's number, `NFT_PAYLOAD_*_HEADER`.
    pub const fn number(self) -> u32 {
        match self {
            Self::Network => 1,
            Self::Transport => 2,
        }
    }
}

/// Property of a connection that can be loaded (`NFT_CT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CtKey {
    /// State of the connection, such as established.
    State,
    /// Direction of the packet: 0 original, 1 reply.
    Direction,
    /// Mark of the connection.
    Mark,
}

impl CtKey {
    /// All connection properties that can be loaded.
    pub const ALL: [Self; 3] = [Self::State, Self::Direction, Self::Mark];

    /// Returns the kernel's number, `NFT_CT_*`.
    pub const fn number(self) -> u32 {
        match self {
            Self::State => 0,
            Self::Direction => 1,
            Self::Mark => 3,
        }
    }
}
