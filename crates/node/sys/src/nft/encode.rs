//! Encodes changes as the bytes of one netlink batch.

use std::net::IpAddr;

use ambit_netplan::{
    Family,
    nft::{Change, Expr, Hook, PayloadBase, SetMember},
};

use super::protocol::{BATCH_BEGIN, BATCH_END, SUBSYSTEM, TableFamily, key_type};
use crate::netlink::{
    Attrs, NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, message,
};

const NEW_TABLE: u16 = SUBSYSTEM;
const DELETE_TABLE: u16 = SUBSYSTEM | 2;
const NEW_CHAIN: u16 = SUBSYSTEM | 3;
const DELETE_CHAIN: u16 = SUBSYSTEM | 5;
const NEW_RULE: u16 = SUBSYSTEM | 6;
const DELETE_RULE: u16 = SUBSYSTEM | 8;
const NEW_SET: u16 = SUBSYSTEM | 9;
const DELETE_SET: u16 = SUBSYSTEM | 11;
const NEW_ELEMENTS: u16 = SUBSYSTEM | 12;
const DELETE_ELEMENTS: u16 = SUBSYSTEM | 14;

/// Register that holds all data, `NFT_REG_1`.
pub(super) const REGISTER: u32 = 1;
/// Returns the register behind an address of this family in [`REGISTER`]: `NFT_REG32_01`, or
/// `NFT_REG_2`, which is how the kernel names the register of four bytes at the same place.
pub(super) const fn register_beside(family: Family) -> u32 {
    match family {
        Family::V4 => 9,
        Family::V6 => 2,
    }
}
/// Register that holds verdicts, `NFT_REG_VERDICT`.
pub(super) const VERDICT_REGISTER: u32 = 0;
pub(super) const ACCEPT: u32 = 1;
pub(super) const DROP: u32 = 0;
/// Socket expression's key for cgroups, `NFT_SOCKET_CGROUPV2`.
pub(super) const SOCKET_CGROUP: u32 = 3;
/// Socket expression's key for marks, `NFT_SOCKET_MARK`.
pub(super) const SOCKET_MARK: u32 = 1;
/// Reject type that sends a TCP reset, `NFT_REJECT_TCP_RST`.
pub(super) const TCP_RESET: u32 = 1;
/// Values of the fib expression: `NFT_FIB_RESULT_ADDRTYPE`, and the flag `NFTA_FIB_F_DADDR`.
pub(super) const ADDRESS_TYPE: u32 = 3;
pub(super) const OF_DESTINATION: u32 = 2;

/// Encodes changes as one batch; returns it with the sequence number of its last message, which alone is acknowledged.
/// Change `i` has the sequence number `i + 1`.
pub(super) fn batch(family: TableFamily, table: &str, changes: &[Change]) -> (Vec<u8>, u32) {
    let mut out = Vec::new();
    // The batch's own messages name the subsystem, in network order.
    let frame = [0, 0, 0, 10];
    message(&mut out, BATCH_BEGIN, NLM_F_REQUEST, 0, &[&frame]);
    let mut seq = 0;
    for (index, change) in changes.iter().enumerate() {
        seq = u32::try_from(index + 1).unwrap_or(u32::MAX);
        let ack = if index + 1 == changes.len() {
            NLM_F_ACK
        } else {
            0
        };
        let (kind, flags, attrs) = step(table, change, index);
        let family = [family as u8, 0, 0, 0];
        message(
            &mut out,
            kind,
            NLM_F_REQUEST | flags | ack,
            seq,
            &[&family, &attrs.into_bytes()],
        );
    }
    message(
        &mut out,
        BATCH_END,
        NLM_F_REQUEST,
        seq.wrapping_add(1),
        &[&frame],
    );
    (out, seq)
}

fn step(table: &str, change: &Change, index: usize) -> (u16, u16, Attrs) {
    let within = || Attrs::new().text(1, table);
    match change {
        // Exclusive, like all creations: a concurrent creation of the same object must be noticed.
        Change::AddTable => (NEW_TABLE, NLM_F_CREATE | NLM_F_EXCL, within().u32_be(2, 0)),
        Change::DeleteTable => (DELETE_TABLE, 0, within()),
        Change::AddChain(name, hook) => (
            NEW_CHAIN,
            NLM_F_CREATE | NLM_F_EXCL,
            chain(within().text(3, name), hook),
        ),
        // A deletion of rules without a rule's handle deletes all rules of the chain.
        Change::FlushChain(name) => (DELETE_RULE, 0, within().text(2, name)),
        Change::DeleteChain(name) => (DELETE_CHAIN, 0, within().text(3, name)),
        Change::AddRule(name, rule) => (
            NEW_RULE,
            NLM_F_CREATE | NLM_F_APPEND,
            within().text(2, name).nest(4, &expressions(rule)),
        ),
        Change::AddSet(name, key) => {
            let (kind, len) = key_type(*key);
            let id = u32::try_from(index).unwrap_or(u32::MAX);
            let set = within()
                .text(2, name)
                .u32_be(3, 0)
                .u32_be(4, kind)
                .u32_be(5, len);
            (NEW_SET, NLM_F_CREATE | NLM_F_EXCL, set.u32_be(10, id))
        }
        Change::DeleteSet(name) => (DELETE_SET, 0, within().text(2, name)),
        Change::AddMember(set, member, comment) => {
            let member = key(*member).bytes(6, &comment_data(comment));
            (
                NEW_ELEMENTS,
                NLM_F_CREATE | NLM_F_EXCL,
                elements(within().text(2, set), &member),
            )
        }
        Change::DeleteMember(set, member) => (
            DELETE_ELEMENTS,
            0,
            elements(within().text(2, set), &key(*member)),
        ),
    }
}

fn chain(attrs: Attrs, hook: &Option<Hook>) -> Attrs {
    let Some(hook) = hook else { return attrs };
    let place = Attrs::new()
        .u32_be(1, hook.number)
        .bytes(2, &hook.priority.to_be_bytes());
    let policy = if hook.accepts { ACCEPT } else { DROP };
    attrs.nest(4, &place).u32_be(5, policy).text(7, &hook.kind)
}

fn elements(attrs: Attrs, member: &Attrs) -> Attrs {
    attrs.nest(3, &Attrs::new().nest(1, member))
}

fn key(member: SetMember) -> Attrs {
    let mut value = match member.ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    if let Some(port) = member.port {
        value.extend(port.to_be_bytes());
        // Each part of a concatenation fills registers of four bytes.
        value.extend([0, 0]);
    }
    Attrs::new().nest(1, &data(&value))
}

/// Encodes a set element's comment in the form that `nft` reads: type 0, length, text with its terminator.
fn comment_data(comment: &str) -> Vec<u8> {
    let text = comment
        .as_bytes()
        .get(..comment.len().min(128))
        .unwrap_or_default();
    let len = u8::try_from(text.len() + 1).unwrap_or(u8::MAX);
    let mut out = vec![0, len];
    out.extend_from_slice(text);
    out.push(0);
    out
}

fn data(value: &[u8]) -> Attrs {
    Attrs::new().bytes(1, value)
}

fn expressions(rule: &[Expr]) -> Attrs {
    rule.iter().fold(Attrs::new(), |list, expr| {
        let (name, attrs) = expression(expr);
        list.nest(1, &Attrs::new().text(1, name).nest(2, &attrs))
    })
}

pub(super) fn expression(expr: &Expr) -> (&str, Attrs) {
    let new = Attrs::new;
    match expr {
        Expr::Meta(key) => ("meta", new().u32_be(2, key.number()).u32_be(1, REGISTER)),
        Expr::SetMark => ("meta", new().u32_be(2, 3).u32_be(3, REGISTER)),
        Expr::Payload { base, offset, len } => {
            let base = new().u32_be(1, REGISTER).u32_be(2, base.number());
            ("payload", base.u32_be(3, *offset).u32_be(4, *len))
        }
        Expr::PortAfterAddress(family) => {
            let port = new().u32_be(1, register_beside(*family));
            let port = port.u32_be(2, PayloadBase::Transport.number());
            ("payload", port.u32_be(3, 2).u32_be(4, 2))
        }
        Expr::Cmp { equal, data: value } => {
            let cmp = new().u32_be(1, REGISTER).u32_be(2, u32::from(!equal));
            ("cmp", cmp.nest(3, &data(value)))
        }
        Expr::Bitwise { mask, xor } => {
            let len = u32::try_from(mask.len()).unwrap_or_default();
            let regs = new().u32_be(1, REGISTER).u32_be(2, REGISTER).u32_be(3, len);
            ("bitwise", regs.nest(4, &data(mask)).nest(5, &data(xor)))
        }
        Expr::Ct(key) => ("ct", new().u32_be(2, key.number()).u32_be(1, REGISTER)),
        Expr::SetCtMark => ("ct", new().u32_be(2, 3).u32_be(4, REGISTER)),
        Expr::SetOriginalZone => ("ct", new().u32_be(2, 17).bytes(3, &[0]).u32_be(4, REGISTER)),
        Expr::NoTrack => ("notrack", new()),
        Expr::Data(value) => ("immediate", new().u32_be(1, REGISTER).nest(2, &data(value))),
        Expr::Accept => ("immediate", verdict(ACCEPT)),
        Expr::Drop => ("immediate", verdict(DROP)),
        Expr::Reset => ("reject", new().u32_be(1, TCP_RESET)),
        Expr::Counter => ("counter", new()),
        Expr::DestinationType => {
            let fib = new().u32_be(1, REGISTER).u32_be(2, ADDRESS_TYPE);
            ("fib", fib.u32_be(3, OF_DESTINATION))
        }
        Expr::SocketCgroup(level) => {
            let socket = new().u32_be(1, SOCKET_CGROUP).u32_be(2, REGISTER);
            ("socket", socket.u32_be(3, *level))
        }
        Expr::SocketMark => ("socket", new().u32_be(1, SOCKET_MARK).u32_be(2, REGISTER)),
        Expr::Redirect => ("redir", new().u32_be(1, REGISTER)),
        Expr::SourceNat(family) => {
            let number = match family {
                Family::V4 => 2,
                Family::V6 => 10,
            };
            (
                "nat",
                new().u32_be(1, 0).u32_be(2, number).u32_be(3, REGISTER),
            )
        }
        Expr::Lookup(set) => ("lookup", new().text(1, set).u32_be(2, REGISTER)),
        Expr::Foreign { name, data } => (name, Attrs::raw(data)),
    }
}

fn verdict(code: u32) -> Attrs {
    let verdict = Attrs::new().nest(2, &Attrs::new().u32_be(1, code));
    Attrs::new().u32_be(1, VERDICT_REGISTER).nest(2, &verdict)
}
