//! Translates rules into nftables expressions.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
};

use super::{CtKey, Expr, Hook, MetaKey, PayloadBase, Set, SetKey, SetMember, Table, TableChain};
use crate::{
    plan::{admits_unknown, drops_guessed, host_ruleset},
    ruleset::{Action, ChainKind, Family, InboundGuard, Match, Rule, Ruleset},
    spec::{Cgroup, HostMember, HostSpec, marks},
};

/// Name of Ambit's nftables table in pods.
pub const POD_TABLE: &str = "ambit";
/// Name of Ambit's nftables table in the node's namespace.
pub const HOST_TABLE: &str = "ambit-probes";

/// Names of the guard chains, which reject packets that were not redirected.
pub(super) const GUARDS: [&str; 3] = [GUARD_INPUT, GUARD_FORWARD, GUARD_OUTPUT];
const GUARD_INPUT: &str = "guard-input";
const GUARD_FORWARD: &str = "guard-forward";
const GUARD_OUTPUT: &str = "guard-output";

/// Address type of local addresses, `RTN_LOCAL`.
const ADDRESS_LOCAL: u32 = 2;
/// Index of the loopback interface, equal in every namespace.
const LOOPBACK: u32 = 1;
/// Bit of `ct state established`.
const STATE_ESTABLISHED: u32 = 2;
const TCP: u8 = 6;
const UDP: u8 = 17;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// Returns the name of the node's set with this key type: pods exempt on every port, or probe ports.
pub const fn set_name(key: SetKey) -> &'static str {
    match (key.has_port, key.family) {
        (false, Family::V4) => "probes-v4",
        (false, Family::V6) => "probes-v6",
        (true, Family::V4) => "probe-ports-v4",
        (true, Family::V6) => "probe-ports-v6",
    }
}

/// Returns the table that implements the rules.
pub fn lower(ruleset: &Ruleset) -> Table {
    let chains = ruleset.chains.iter().map(|chain| {
        let (name, hook) = hook(chain.kind);
        let rules = chain.rules.iter().map(lower_rule).collect();
        (
            name.to_owned(),
            TableChain {
                hook: Some(hook),
                rules,
            },
        )
    });
    Table {
        chains: chains.collect(),
        sets: BTreeMap::new(),
    }
}

/// Returns which packets the inbound guard in the pod's table accepts.
pub fn inbound_guard(table: Option<&Table>) -> InboundGuard {
    match table.and_then(|table| table.chains.get(GUARD_INPUT)) {
        None => InboundGuard::Missing,
        Some(chain) if chain.rules.contains(&lower_rule(&admits_unknown())) => {
            InboundGuard::AdmitsUnknown
        }
        // Their guard asks nothing of connection tracking.
        Some(_) if table.is_some_and(has_bpf_guards) => InboundGuard::Missing,
        Some(_) => InboundGuard::KnownOnly,
    }
}

/// Whether the guards of a pod's table are those of capture by BPF programs.
pub fn has_bpf_guards(table: &Table) -> bool {
    let guard = table.chains.get(GUARD_INPUT);
    guard.is_some_and(|chain| chain.rules.contains(&lower_rule(&drops_guessed())))
}

/// Returns the desired table of the node's namespace. Members of a disabled family are left out; the sets of pods
/// exempt on every port, and the rules that use them, exist only if there is such a pod.
pub fn host_table(spec: &HostSpec, members: &[HostMember]) -> Table {
    let every_port = members.iter().any(|member| member.port.is_none());
    let ruleset = host_ruleset(spec, every_port);
    let mut table = lower(&ruleset);
    for family in ruleset.families {
        for has_port in every_port.then_some(false).into_iter().chain([true]) {
            let key = SetKey { family, has_port };
            let set = Set {
                key,
                members: BTreeMap::new(),
            };
            table.sets.insert(set_name(key).into(), set);
        }
    }
    for HostMember { ip, port, uid } in members {
        let member = SetMember {
            ip: *ip,
            port: *port,
        };
        if let Some(set) = table.sets.get_mut(set_name(member.key())) {
            set.members.insert(member, uid.clone());
        }
    }
    table
}

/// Returns the members of all sets of the node's table.
pub fn host_members(table: &Table) -> Vec<HostMember> {
    let members = table.sets.values().flat_map(|set| &set.members);
    members
        .map(|(SetMember { ip, port }, uid)| HostMember {
            ip: *ip,
            port: *port,
            uid: uid.clone(),
        })
        .collect()
}

/// Returns the node's table of family bridge, also named [`HOST_TABLE`]: rules of family inet do not see frames between
/// two ports of a bridge, which must not have a probe's address either.
pub fn bridge_table(spec: &HostSpec) -> Table {
    const TAGS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];
    let mut rules = Vec::new();
    for (is_enabled, ether_type, address) in [
        (spec.ipv4, [0x08, 0x00], IpAddr::V4(spec.probe_v4)),
        (spec.ipv6, [0x86, 0xdd], IpAddr::V6(spec.probe_v6)),
    ] {
        if is_enabled {
            let mut rule = vec![Expr::Meta(MetaKey::EtherType), eq(ether_type)];
            rule.extend(source_address(address));
            rule.extend([Expr::Counter, Expr::Drop]);
            rules.push(rule);
        }
    }
    // The kernel removes one tag from a frame before this hook, and all that name no VLAN where it
    // arrives: such a second tag would only hide the contents. (The last bit is ignored: `nft`
    // takes a plain comparison for the beginning of an expression of its own, and fails.)
    for tag in TAGS {
        let masked = |mask: [u8; 2]| Expr::Bitwise {
            mask: mask.into(),
            xor: vec![0, 0],
        };
        let control = Expr::Payload {
            base: PayloadBase::Network,
            offset: 0,
            len: 2,
        };
        rules.push(vec![
            Expr::Meta(MetaKey::EtherType),
            masked([0xff, 0xfe]),
            eq(tag),
            control,
            masked([0x0f, 0xff]),
            eq([0, 0]),
            Expr::Counter,
            Expr::Drop,
        ]);
    }
    let (name, hook) = hook(ChainKind::RawPrerouting);
    let chain = TableChain {
        hook: Some(hook),
        rules,
    };
    Table {
        chains: BTreeMap::from([(name.to_owned(), chain)]),
        sets: BTreeMap::new(),
    }
}

/// Returns the name of a kind of chain.
pub fn chain_name(kind: ChainKind) -> &'static str {
    hook(kind).0
}

fn hook(kind: ChainKind) -> (&'static str, Hook) {
    // Numbers: prerouting 0, input 1, forward 2, output 3, postrouting 4. Priorities: raw -300, mangle
    // -150, dstnat -100, filter 0, srcnat 100; connection tracking itself is at -200.
    let (name, chain_type, number, priority) = match kind {
        ChainKind::RawPrerouting => ("raw-prerouting", "filter", 0, -300),
        ChainKind::RawOutput => ("raw-output", "filter", 3, -300),
        ChainKind::RouteOutput => ("route-output", "route", 3, -150),
        ChainKind::NatPrerouting => ("nat-prerouting", "nat", 0, -100),
        ChainKind::NatOutput => ("nat-output", "nat", 3, -100),
        ChainKind::NatPostrouting => ("nat-postrouting", "nat", 4, 100),
        ChainKind::GuardInput => (GUARD_INPUT, "filter", 1, 0),
        ChainKind::GuardForward => (GUARD_FORWARD, "filter", 2, 0),
        ChainKind::GuardOutput => (GUARD_OUTPUT, "filter", 3, 0),
    };
    (
        name,
        Hook {
            kind: chain_type.into(),
            number,
            priority,
            accepts: true,
        },
    )
}

fn lower_rule(rule: &Rule) -> Vec<Expr> {
    let mut out = Vec::new();
    if let Some(family) = rule.family {
        let number = match family {
            Family::V4 => 2,
            Family::V6 => 10,
        };
        out.extend([Expr::Meta(MetaKey::Family), eq([number])]);
    }
    for one in &rule.matches {
        lower_match(one, rule.family, &mut out);
    }
    for action in &rule.actions {
        lower_action(*action, &mut out);
    }
    out
}

fn eq(data: impl Into<Vec<u8>>) -> Expr {
    Expr::Cmp {
        equal: true,
        data: data.into(),
    }
}

fn ne(data: impl Into<Vec<u8>>) -> Expr {
    Expr::Cmp {
        equal: false,
        data: data.into(),
    }
}

fn masked(mask: u32, xor: u32) -> Expr {
    Expr::Bitwise {
        mask: mask.to_ne_bytes().into(),
        xor: xor.to_ne_bytes().into(),
    }
}

fn source_port() -> Expr {
    Expr::Payload {
        base: PayloadBase::Transport,
        offset: 0,
        len: 2,
    }
}

fn destination_port() -> Expr {
    Expr::Payload {
        base: PayloadBase::Transport,
        offset: 2,
        len: 2,
    }
}

/// Returns expressions that compare the TCP flags under `mask`. A packet whose flags cannot be read does not match.
fn tcp_flags(mask: u8, compare: Expr) -> [Expr; 5] {
    let flags = Expr::Payload {
        base: PayloadBase::Transport,
        offset: 13,
        len: 1,
    };
    let masked = Expr::Bitwise {
        mask: vec![mask],
        xor: vec![0],
    };
    [
        Expr::Meta(MetaKey::Protocol),
        eq([TCP]),
        flags,
        masked,
        compare,
    ]
}

/// Returns expressions that match loopback destinations; 127.0.0.0/8 is identified by its first byte.
fn loopback_destination(family: Family) -> [Expr; 2] {
    let (offset, data) = match family {
        Family::V4 => (16, vec![127]),
        Family::V6 => (24, Ipv6Addr::LOCALHOST.octets().to_vec()),
    };
    let destination = Expr::Payload {
        base: PayloadBase::Network,
        offset,
        len: if family == Family::V4 { 1 } else { 16 },
    };
    [destination, eq(data)]
}

fn source_address(ip: IpAddr) -> [Expr; 2] {
    let base = PayloadBase::Network;
    match ip {
        IpAddr::V4(ip) => [
            Expr::Payload {
                base,
                offset: 12,
                len: 4,
            },
            eq(ip.octets()),
        ],
        IpAddr::V6(ip) => [
            Expr::Payload {
                base,
                offset: 8,
                len: 16,
            },
            eq(ip.octets()),
        ],
    }
}

fn destination_in_set(key: SetKey) -> impl Iterator<Item = Expr> {
    let (offset, len) = match key.family {
        Family::V4 => (16, 4),
        Family::V6 => (24, 16),
    };
    let destination = Expr::Payload {
        base: PayloadBase::Network,
        offset,
        len,
    };
    let port = key.has_port.then_some(Expr::PortAfterAddress(key.family));
    let lookup = Expr::Lookup(set_name(key).into());
    [destination].into_iter().chain(port).chain([lookup])
}

fn interface_name(name: &str) -> Vec<u8> {
    let mut data = name.as_bytes().to_vec();
    data.resize(16, 0);
    data
}

fn lower_match(one: &Match, family: Option<Family>, out: &mut Vec<Expr>) {
    let mark = |load, compare| [load, masked(marks::MASK, 0), compare];
    let meta = Expr::Meta;
    match one {
        Match::Tcp => out.extend([meta(MetaKey::Protocol), eq([TCP])]),
        Match::Udp => out.extend([meta(MetaKey::Protocol), eq([UDP])]),
        Match::TcpOpening => out.extend(tcp_flags(SYN | ACK, eq([SYN]))),
        Match::TcpWithoutSyn => out.extend(tcp_flags(SYN, eq([0]))),
        Match::TcpNotOpening => out.extend(tcp_flags(SYN | ACK, ne([SYN]))),
        Match::TcpSynAck => out.extend(tcp_flags(SYN | ACK, eq([SYN | ACK]))),
        Match::InLoopback => out.extend([meta(MetaKey::InIndex), eq(LOOPBACK.to_ne_bytes())]),
        Match::OutLoopback => out.extend([meta(MetaKey::OutIndex), eq(LOOPBACK.to_ne_bytes())]),
        Match::InInterface(name) => {
            out.extend([meta(MetaKey::InName), eq(interface_name(name))]);
        }
        Match::NotSourcePort(number) => out.extend([source_port(), ne(number.to_be_bytes())]),
        Match::DestinationPort(number) => {
            out.extend([destination_port(), eq(number.to_be_bytes())]);
        }
        Match::NotDestinationPort(number) => {
            out.extend([destination_port(), ne(number.to_be_bytes())]);
        }
        Match::Source(ip) => out.extend(source_address(*ip)),
        Match::LocalDestination => {
            out.extend([Expr::DestinationType, eq(ADDRESS_LOCAL.to_ne_bytes())]);
        }
        Match::LoopbackDestination => {
            out.extend(loopback_destination(family.unwrap_or(Family::V4)));
        }
        Match::ExemptPod | Match::ProbePort => out.extend(destination_in_set(SetKey {
            family: family.unwrap_or(Family::V4),
            has_port: *one == Match::ProbePort,
        })),
        Match::Mark(value) => out.extend(mark(meta(MetaKey::Mark), eq(value.to_ne_bytes()))),
        Match::NotMark(value) => out.extend(mark(meta(MetaKey::Mark), ne(value.to_ne_bytes()))),
        Match::ConnectionMark(value) => {
            out.extend(mark(Expr::Ct(CtKey::Mark), eq(value.to_ne_bytes())));
        }
        Match::Reply => out.extend([Expr::Ct(CtKey::Direction), eq([1])]),
        Match::Established => {
            let bits = masked(STATE_ESTABLISHED, 0);
            out.extend([Expr::Ct(CtKey::State), bits, ne(0u32.to_ne_bytes())]);
        }
        // Loading the user ends the rule by itself where there is no socket. The comparison with an
        // impossible user is for tools that list the rule.
        Match::LocalSocket(None) => {
            out.extend([meta(MetaKey::SocketUser), ne(u32::MAX.to_ne_bytes())]);
        }
        Match::SocketCgroup(Cgroup { level, id }) => {
            out.extend([Expr::SocketCgroup(*level), eq(id.to_ne_bytes())]);
        }
        Match::SocketMark(value) => out.extend(mark(Expr::SocketMark, eq(value.to_ne_bytes()))),
        Match::LocalSocket(Some(uid)) => {
            out.extend([meta(MetaKey::SocketUser), eq(uid.to_ne_bytes())]);
        }
    }
}

fn lower_action(action: Action, out: &mut Vec<Expr>) {
    match action {
        Action::Exempt => out.push(Expr::Accept),
        Action::Redirect(port) => {
            out.extend([Expr::Data(port.to_be_bytes().into()), Expr::Redirect]);
        }
        Action::SourceNat(IpAddr::V4(ip)) => {
            let address = Expr::Data(ip.octets().into());
            out.extend([Expr::Counter, address, Expr::SourceNat(Family::V4)]);
        }
        Action::SourceNat(IpAddr::V6(ip)) => {
            let address = Expr::Data(ip.octets().into());
            out.extend([Expr::Counter, address, Expr::SourceNat(Family::V6)]);
        }
        Action::SetConnectionMark(mark) => {
            out.extend([
                Expr::Ct(CtKey::Mark),
                masked(!marks::MASK, mark),
                Expr::SetCtMark,
            ]);
        }
        Action::SetMark(mark) => {
            out.extend([
                Expr::Meta(MetaKey::Mark),
                masked(!marks::MASK, mark),
                Expr::SetMark,
            ]);
        }
        Action::RestoreMark => out.extend([Expr::Ct(CtKey::Mark), Expr::SetMark]),
        Action::OriginalZone(zone) => {
            out.extend([Expr::Data(zone.to_ne_bytes().into()), Expr::SetOriginalZone]);
        }
        Action::NoTrack => out.push(Expr::NoTrack),
        Action::Refuse => out.extend([Expr::Counter, Expr::Reset]),
        Action::Drop => out.extend([Expr::Counter, Expr::Drop]),
    }
}
