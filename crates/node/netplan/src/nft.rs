//! The rules in the kernel's own terms: a table of chains of expressions, and how two tables differ.
//!
//! Expressions are values here; the netlink code encodes their bytes. All data passes through one
//! register, so expressions do not name registers. [`Expr::PortBeside`] alone fills a second one.

mod diff;
mod lower;

use std::{collections::BTreeMap, fmt, net::IpAddr};

pub use diff::{Change, apply, diff, steps};
pub use lower::{
    HOST_TABLE, POD_TABLE, bridge_table, chain_name, host_members, host_table, inbound_guard,
    lower, set_name,
};

use crate::ruleset::Family;

/// One table, of family inet unless stated otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Chains of the table by name.
    pub chains: BTreeMap<String, TableChain>,
    /// Sets of the table by name.
    pub sets: BTreeMap<String, Set>,
}

/// A chain and its rules in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableChain {
    /// The hook it is attached to; `None`: only other chains jump to it.
    pub hook: Option<Hook>,
    /// Rules as expression lists.
    pub rules: Vec<Vec<Expr>>,
}

/// Netfilter hook of a base chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// `filter`, `route` or `nat`.
    pub kind: String,
    /// Number of the hook (`NF_INET_*`).
    pub number: u32,
    /// Lower is earlier.
    pub priority: i32,
    /// Default policy: whether packets that no rule decides are accepted.
    pub accepts: bool,
}

/// A set of addresses or of addresses with ports, each with a comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Type of the members.
    pub key: SetKey,
    /// Comment by member.
    pub members: BTreeMap<SetMember, String>,
}

/// The type of a set's members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetKey {
    /// The family of the addresses.
    pub family: Family,
    /// Whether members have a TCP port besides the address.
    pub has_port: bool,
}

/// One member of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SetMember {
    /// Address of the member.
    pub ip: IpAddr,
    /// Port, in sets with ports.
    pub port: Option<u16>,
}

impl SetMember {
    /// Returns the set type for the member.
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

/// One expression of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// Loads a property of the packet.
    Meta(MetaKey),
    /// Sets the packet's mark.
    SetMark,
    /// Loads bytes of a header.
    Payload {
        /// Header that the bytes are in.
        base: PayloadBase,
        /// Offset of the first byte.
        offset: u32,
        /// Number of bytes.
        len: u32,
    },
    /// Loads the destination port behind an address of this family, for a lookup of both.
    PortBeside(Family),
    /// Continues only if the comparison holds.
    Cmp {
        /// Equal, or not equal.
        equal: bool,
        /// Data to compare with.
        data: Vec<u8>,
    },
    /// `data & mask ^ xor`.
    Bitwise {
        /// Mask of preserved bits.
        mask: Vec<u8>,
        /// Bits that are flipped after masking.
        xor: Vec<u8>,
    },
    /// Loads a property of the connection.
    Ct(CtKey),
    /// Sets the connection's mark.
    SetCtMark,
    /// Sets the zone for the original direction.
    SetOriginalZone,
    /// Loads constant data.
    Data(Vec<u8>),
    /// Accepts the packet and ends the chain.
    Accept,
    /// Translates the destination to this namespace, port from the data.
    Redirect,
    /// Translates the source to the address in the data.
    SourceNat(Family),
    /// Continues only if the data is in the set.
    Lookup(String),
    /// Loads the number of the socket's cgroup at this level.
    SocketCgroup(u32),
    /// Loads the destination's address type (`RTN_*`).
    DestinationType,
    /// Counts the packets that reach it. The counter's value is ignored in comparisons.
    Counter,
    /// Drops the packet and resets its connection.
    Reset,
    /// Drops the packet.
    Drop,
    /// Decoded expression of another kind.
    Foreign {
        /// Name of the expression.
        name: String,
        /// Raw attributes of the expression.
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
    /// User that owns the packet's socket.
    SocketUser,
    /// Family in netfilter's numbering.
    Family,
    /// Transport protocol number.
    Protocol,
    /// Protocol in the frame, such as IPv4 (a bridge's packets may be of any).
    EtherType,
}

impl MetaKey {
    /// All meta keys.
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

    /// The kernel's number, `NFT_META_*`.
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

/// Which header bytes are loaded from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadBase {
    /// The IP header.
    Network,
    /// TCP or UDP.
    Transport,
}

impl PayloadBase {
    /// The kernel's number, `NFT_PAYLOAD_*_HEADER`.
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
    /// State of the connection.
    State,
    /// 0 original, 1 reply.
    Direction,
    /// Mark of the connection.
    Mark,
}

impl CtKey {
    /// All conntrack keys.
    pub const ALL: [Self; 3] = [Self::State, Self::Direction, Self::Mark];

    /// The kernel's number, `NFT_CT_*`.
    pub const fn number(self) -> u32 {
        match self {
            Self::State => 0,
            Self::Direction => 1,
            Self::Mark => 3,
        }
    }
}
