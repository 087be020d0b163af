//! Constants of the netfilter netlink protocol.

use ambit_netplan::{Family, nft::SetKey};

pub(super) const SUBSYSTEM: u16 = 10 << 8;
pub(super) const GET_TABLE: u16 = SUBSYSTEM | 1;
pub(super) const GET_CHAIN: u16 = SUBSYSTEM | 4;
pub(super) const GET_RULE: u16 = SUBSYSTEM | 7;
pub(super) const GET_SET: u16 = SUBSYSTEM | 10;
pub(super) const GET_ELEMENTS: u16 = SUBSYSTEM | 13;
pub(super) const BATCH_BEGIN: u16 = 0x10;
pub(super) const BATCH_END: u16 = 0x11;
pub(super) const UNSPEC: u8 = 0;
/// Length of `struct nfgenmsg`, which precedes the attributes of every message.
pub(super) const NFGENMSG_BYTES: usize = 4;

/// Address family of a table, which determines the packets that its chains see (`NFPROTO_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableFamily {
    /// IPv4 and IPv6.
    Inet = 1,
    /// Frames that a bridge forwards between its ports.
    Bridge = 7,
}

/// Number of bits by which `nft` shifts the first of two types in a concatenation.
const CONCATENATION_SHIFT_BITS: u32 = 6;
/// Type number of a port in a set's concatenated key, and its length in bytes, padded to a register.
const PORT_TYPE_AND_BYTES: (u32, u32) = (13, 4);

/// Returns the type number and length in bytes of a set's key, with the type numbers of `nft`.
pub(super) const fn key_type(key: SetKey) -> (u32, u32) {
    let (number, len) = match key.family {
        Family::V4 => (7, 4),
        Family::V6 => (8, 16),
    };
    if key.has_port {
        (
            number << CONCATENATION_SHIFT_BITS | PORT_TYPE_AND_BYTES.0,
            len + PORT_TYPE_AND_BYTES.1,
        )
    } else {
        (number, len)
    }
}
