//! Checks the rules against a table of packets, with a small evaluator that is independent of the plan.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::net::IpAddr;

use ambit_netplan::{
    Action, ChainKind, Family, Match, ProbePorts, RedirectionSpec, Rule, Ruleset, Translated, plan,
    plan_by_bpf, plan_capturing, plan_released, plan_released_by_bpf,
};
use proptest::prelude::*;

/// Combination of TCP flags in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flags {
    /// SYN without ACK.
    Opening,
    /// SYN with ACK.
    Answer,
    /// Flags without SYN.
    Other,
    /// Truncated TCP header.
    Unreadable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Destination {
    Own,
    Loopback,
    Elsewhere,
}

/// TCP or UDP packet that opens a connection; for the guards, of any connection.
#[derive(Clone, Debug)]
struct Packet {
    input: Option<&'static str>,
    output: Option<&'static str>,
    tcp: bool,
    flags: Flags,
    reply: bool,
    /// Whether connection tracking has seen packets of the connection in both directions.
    known: bool,
    source: IpAddr,
    destination: Destination,
    sport: u16,
    dport: u16,
    mark: u32,
    /// Mark of the socket that the packet's connection has in the pod.
    socket_mark: Option<u32>,
}

impl Packet {
    fn is_v4(&self) -> bool {
        self.source.is_ipv4()
    }
}

fn matches(one: &Match, p: &Packet) -> bool {
    match one {
        Match::Tcp => p.tcp,
        Match::Udp => !p.tcp,
        Match::TcpOpening => p.tcp && p.flags == Flags::Opening,
        Match::TcpWithoutSyn => p.tcp && p.flags == Flags::Other,
        Match::TcpNotOpening => p.tcp && matches!(p.flags, Flags::Other | Flags::Answer),
        Match::TcpSynAck => p.tcp && p.flags == Flags::Answer,
        // Loopback addresses are local ones.
        Match::LocalDestination => p.destination != Destination::Elsewhere,
        Match::LoopbackDestination => p.destination == Destination::Loopback,
        Match::InLoopback => p.input == Some("lo"),
        Match::InInterface(name) => p.input == Some(name),
        Match::OutLoopback => p.output == Some("lo"),
        Match::NotSourcePort(port) => p.sport != *port,
        Match::DestinationPort(port) => p.dport == *port,
        Match::NotDestinationPort(port) => p.dport != *port,
        Match::Source(ip) => p.source == *ip,
        Match::Mark(mark) => p.mark & 0xfff == *mark,
        Match::NotMark(mark) => p.mark & 0xfff != *mark,
        Match::Reply => p.reply,
        Match::Established => p.known,
        // The first packet of a connection has none.
        Match::ConnectionMark(_) => false,
        Match::SocketMark(mark) => p.socket_mark.is_some_and(|of| of & 0xfff == *mark),
        Match::ExemptPod | Match::ProbePort | Match::LocalSocket(_) | Match::SocketCgroup(_) => {
            unreachable!("not in pods")
        }
    }
}

fn applies(rule: &Rule, p: &Packet) -> bool {
    rule.family.is_none_or(|f| (f == Family::V4) == p.is_v4())
        && rule.matches.iter().all(|one| matches(one, p))
}

/// Returns the port to which the chain redirects a packet, if it does.
fn redirected(ruleset: &Ruleset, kind: ChainKind, p: &Packet) -> Option<u16> {
    let chain = ruleset.chains.iter().find(|chain| chain.kind == kind)?;
    for action in chain
        .rules
        .iter()
        .filter(|rule| applies(rule, p))
        .flat_map(|r| &r.actions)
    {
        match action {
            Action::Redirect(port) => return Some(*port),
            Action::Exempt => return None,
            _ => {}
        }
    }
    None
}

/// Returns the actions of the chain's rules that apply to a packet, without regard to those that end the chain.
fn actions<'a>(
    ruleset: &'a Ruleset,
    kind: ChainKind,
    p: &'a Packet,
) -> impl Iterator<Item = &'a Action> {
    let chains = ruleset
        .chains
        .iter()
        .filter(move |chain| chain.kind == kind);
    let rules = chains.flat_map(|chain| &chain.rules);
    rules
        .filter(|rule| applies(rule, p))
        .flat_map(|rule| &rule.actions)
}

/// Whether connection tracking sees a packet, which no chain has excluded from it.
fn is_tracked(ruleset: &Ruleset, p: &Packet) -> bool {
    let kind = match p.output {
        Some(_) => ChainKind::RawOutput,
        None => ChainKind::RawPrerouting,
    };
    let mut until_exempt =
        actions(ruleset, kind, p).take_while(|action| **action != Action::Exempt);
    !until_exempt.any(|action| *action == Action::NoTrack)
}

/// Returns the packet's mark after the chain `raw-output`.
fn marked(ruleset: &Ruleset, p: &Packet) -> u32 {
    for action in actions(ruleset, ChainKind::RawOutput, p) {
        match action {
            Action::SetMark(mark) => return p.mark & !0xfff | mark,
            Action::Exempt => return p.mark,
            _ => {}
        }
    }
    p.mark
}

fn ip() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        Just("10.0.0.9".parse().unwrap()),
        Just("fd00::9".parse().unwrap()),
        Just(IpAddr::from(ambit_netplan::probes::V4)),
        Just(IpAddr::from(ambit_netplan::probes::V6)),
    ]
}

fn port() -> impl Strategy<Value = u16> {
    prop_oneof![
        Just(53),
        Just(80),
        Just(15001),
        Just(15006),
        Just(15008),
        Just(15053),
        any::<u16>()
    ]
}

fn packet() -> impl Strategy<Value = Packet> {
    let interface = || prop_oneof![Just("lo"), Just("eth0"), Just("k6t")];
    let mark = prop_oneof![
        Just(0),
        Just(0x539),
        Just(0x1539),
        Just(0x111),
        Just(0x1222),
        any::<u32>()
    ];
    let socket_mark = prop_oneof![
        Just(None),
        Just(Some(0)),
        Just(Some(0x539)),
        Just(Some(0x1222))
    ];
    let flags = prop_oneof![
        3 => Just(Flags::Opening),
        1 => Just(Flags::Answer),
        1 => Just(Flags::Other),
        1 => Just(Flags::Unreadable),
    ];
    let destination = prop_oneof![
        Just(Destination::Own),
        Just(Destination::Loopback),
        Just(Destination::Elsewhere),
    ];
    let where_to = (interface(), destination, port(), port());
    (
        where_to,
        any::<[bool; 4]>(),
        flags,
        ip(),
        (mark, socket_mark),
    )
        .prop_map(
            |(
                (interface, destination, sport, dport),
                [local, tcp, reply, known],
                flags,
                source,
                (mark, socket_mark),
            )| {
                Packet {
                    input: (!local).then_some(interface),
                    output: local.then_some(interface),
                    tcp,
                    flags,
                    reply,
                    known,
                    source,
                    destination,
                    sport,
                    dport,
                    mark,
                    socket_mark,
                }
            },
        )
}

fn spec() -> impl Strategy<Value = RedirectionSpec> {
    let ports = prop_oneof![
        Just(ProbePorts::All),
        Just(ProbePorts::Only(vec![53, 80])),
        Just(ProbePorts::Only(Vec::new())),
    ];
    (any::<[bool; 4]>(), 0..3u8, ports).prop_map(|([dns, ingress, k6t, probes], one, ports)| {
        RedirectionSpec {
            probe_ports: ports,
            probe_interfaces: if probes {
                vec!["eth0".into()]
            } else {
                Vec::new()
            },
            ipv4: one != 1,
            ipv6: one != 2,
            dns_capture: dns,
            ingress_bypass: ingress,
            virtual_interfaces: if k6t { vec!["k6t".into()] } else { Vec::new() },
            ..RedirectionSpec::default()
        }
    })
}

fn translated() -> impl Strategy<Value = Translated> {
    prop_oneof![
        Just(Translated::Nothing),
        Just(Translated::Dns),
        Just(Translated::Connections),
    ]
}

fn is_probe(spec: &RedirectionSpec, p: &Packet) -> bool {
    !spec.probe_interfaces.is_empty()
        && p.input == Some("eth0")
        && (p.source == IpAddr::from(spec.probe_v4) || p.source == IpAddr::from(spec.probe_v6))
        && match &spec.probe_ports {
            ProbePorts::All => true,
            ProbePorts::Only(ports) => ports.contains(&p.dport),
        }
}

/// Returns the port to which the contract demands that the packet is redirected, computed without the rules.
fn expected(spec: &RedirectionSpec, p: &Packet) -> Option<u16> {
    if !(if p.is_v4() { spec.ipv4 } else { spec.ipv6 }) {
        return None;
    }
    let proxy = p.mark & 0xfff == 0x539;
    if p.output.is_some() {
        if p.output == Some("lo") || proxy {
            return None;
        }
        let dns = spec.dns_capture && p.dport == 53;
        return match (p.tcp, p.flags == Flags::Opening) {
            (true, false) => None,
            (true, true) if dns => Some(15053),
            (true, true) => Some(15001),
            (false, _) => dns.then_some(15053),
        };
    }
    if !p.tcp || p.flags != Flags::Opening {
        return None;
    }
    if p.input == Some("k6t") && !spec.virtual_interfaces.is_empty() {
        return Some(15001);
    }
    let probe = is_probe(spec, p);
    let exempt = spec.ingress_bypass || p.input == Some("lo") || probe || p.dport == 15008;
    (!exempt && p.destination == Destination::Own).then_some(15006)
}

/// Whether a guard chain refuses the packet.
fn refused(ruleset: &Ruleset, kind: ChainKind, p: &Packet) -> bool {
    decision(ruleset, kind, p) == Some(Action::Refuse)
}

/// Whether a guard chain refuses or drops the packet.
fn stopped(ruleset: &Ruleset, kind: ChainKind, p: &Packet) -> bool {
    matches!(
        decision(ruleset, kind, p),
        Some(Action::Refuse | Action::Drop)
    )
}

fn decision(ruleset: &Ruleset, kind: ChainKind, p: &Packet) -> Option<Action> {
    let chain = ruleset.chains.iter().find(|chain| chain.kind == kind);
    let decisions = chain
        .into_iter()
        .flat_map(|chain| &chain.rules)
        .filter(|rule| applies(rule, p))
        .flat_map(|rule| &rule.actions);
    decisions.into_iter().next().copied()
}

/// Whether a packet may pass the guards, computed without the rules.
fn may_pass(spec: &RedirectionSpec, capturing: bool, kind: ChainKind, p: &Packet) -> bool {
    if !(if p.is_v4() { spec.ipv4 } else { spec.ipv6 }) || !p.tcp {
        return true;
    }
    let opening = matches!(p.flags, Flags::Opening | Flags::Unreadable);
    let virtual_interface = p.input == Some("k6t") && !spec.virtual_interfaces.is_empty();
    match kind {
        ChainKind::GuardOutput => {
            let proxy = p.mark & 0xfff == 0x539;
            let stays = p.output == Some("lo") || p.destination == Destination::Loopback;
            !opening || proxy || stays
        }
        ChainKind::GuardForward if spec.ingress_bypass => {
            !(virtual_interface && p.flags == Flags::Opening)
        }
        ChainKind::GuardForward => !opening,
        _ => {
            let probe = is_probe(spec, p);
            let proxy = matches!(p.dport, 15006 | 15008) || p.dport == 15001 && virtual_interface;
            let answer = p.flags == Flags::Answer && p.reply;
            let loopback = p.destination == Destination::Loopback;
            spec.ingress_bypass
                || p.flags == Flags::Other && (p.known || capturing)
                || p.input == Some("lo")
                || !loopback && (probe || proxy || answer)
        }
    }
}

/// Whether a packet may pass the guards of a pod that BPF programs capture, computed without the rules.
fn may_pass_bpf(spec: &RedirectionSpec, own: IpAddr, kind: ChainKind, p: &Packet) -> bool {
    if !(if p.is_v4() { spec.ipv4 } else { spec.ipv6 }) || !p.tcp {
        return true;
    }
    let opening = matches!(p.flags, Flags::Opening | Flags::Unreadable);
    match kind {
        ChainKind::GuardOutput => match p.mark & 0xfff {
            _ if p.output == Some("lo") => true,
            0x222 => false,
            0x539 => true,
            _ => !opening || p.destination == Destination::Loopback,
        },
        ChainKind::GuardForward => spec.ingress_bypass || !opening,
        _ => {
            let captured = p.socket_mark == Some(0x1222);
            p.input == Some("lo") || !captured && p.source != own
        }
    }
}

fn through(ruleset: &Ruleset, p: &Packet) -> Option<u16> {
    match p.output {
        Some(_) => {
            let p = Packet {
                mark: marked(ruleset, p),
                ..p.clone()
            };
            redirected(ruleset, ChainKind::NatOutput, &p)
        }
        None => redirected(ruleset, ChainKind::NatPrerouting, p),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn connections_follow_the_contract(spec in spec(), p in packet()) {
        prop_assert_eq!(through(&plan(&spec).unwrap(), &p), expected(&spec, &p));
    }

    /// Checks that guards refuse openings that connection tracking passed untranslated, or translated to another
    /// destination than the proxy.
    #[test]
    fn guards_refuse_openings_that_bypass_the_proxy(spec in spec(), p in packet()) {
        let kinds: &[_] = if p.output.is_some() {
            &[ChainKind::GuardOutput]
        } else {
            &[ChainKind::GuardInput, ChainKind::GuardForward]
        };
        for kind in kinds {
            let refused_by = |ruleset: &Ruleset| refused(ruleset, *kind, &p);
            let (captured, capturing) = (plan(&spec).unwrap(), plan_capturing(&spec).unwrap());
            prop_assert_eq!(refused_by(&captured), !may_pass(&spec, false, *kind, &p), "{:?}", kind);
            prop_assert_eq!(refused_by(&capturing), !may_pass(&spec, true, *kind, &p), "{:?}", kind);
            prop_assert!(!self::refused(&plan_released(), *kind, &p));
        }
    }

    #[test]
    fn guards_of_bpf_stop_what_no_program_gave_to_the_proxy(
        mut spec in spec(),
        p in packet(),
        own in ip(),
        translated in translated(),
    ) {
        spec.virtual_interfaces.clear();
        let ruleset = plan_by_bpf(&spec, &[own], translated).unwrap();
        let is_query = expected(&spec, &p) == Some(15053);
        prop_assert_eq!(through(&ruleset, &p), is_query.then_some(15053));
        let kinds: &[_] = if p.output.is_some() {
            &[ChainKind::GuardOutput]
        } else {
            &[ChainKind::GuardInput, ChainKind::GuardForward]
        };
        for kind in kinds {
            let passes = !stopped(&ruleset, *kind, &p);
            prop_assert_eq!(passes, may_pass_bpf(&spec, own, *kind, &p), "{:?}", kind);
        }
    }

    /// Checks that DNS capture beside BPF programs tracks the connections that it translates, in both directions, and
    /// no other TCP.
    #[test]
    fn only_dns_is_tracked_beside_bpf(mut spec in spec(), p in packet(), released: bool) {
        spec.virtual_interfaces.clear();
        spec.dns_capture = true;
        let ruleset = if released {
            plan_released_by_bpf()
        } else {
            plan_by_bpf(&spec, &[], Translated::Nothing).unwrap()
        };
        let is_dns = match p.output {
            Some(_) => p.dport == 53 || p.sport == 15053,
            None => p.sport == 53,
        };
        let family = released || if p.is_v4() { spec.ipv4 } else { spec.ipv6 };
        prop_assert_eq!(is_tracked(&ruleset, &p), !p.tcp || is_dns || !family);
    }

    /// Checks that no rule of capture by BPF needs connection tracking, which even one of them would load.
    #[test]
    fn rules_of_bpf_know_nothing_of_connections(mut spec in spec(), own in ip()) {
        spec.dns_capture = false;
        spec.virtual_interfaces.clear();
        let ruleset = plan_by_bpf(&spec, &[own], Translated::Nothing).unwrap();
        for rule in ruleset.chains.iter().flat_map(|chain| &chain.rules) {
            let stateless = rule.matches.iter().all(|one| !matches!(
                one,
                Match::ConnectionMark(_) | Match::Reply | Match::Established
            )) && rule.actions.iter().all(|action| matches!(
                action,
                Action::Exempt | Action::Refuse | Action::Drop
            ));
            prop_assert!(stateless, "{:?}", rule);
        }
        prop_assert!(ruleset.chains.iter().all(|chain| chain.kind.is_guard()));
    }

    /// Checks that packets with marks of other programs keep them.
    #[test]
    fn marks_of_others_are_left_alone(spec in spec(), mut p in packet()) {
        p.input = None;
        p.output = p.output.or(Some("eth0"));
        let after = marked(&plan(&spec).unwrap(), &p);
        prop_assert_eq!(after & !0xfff, p.mark & !0xfff);
        if p.mark & 0xfff != 0x539 {
            prop_assert_eq!(after, p.mark);
        }
    }

    #[test]
    fn a_released_pod_redirects_nothing(p in packet()) {
        prop_assert_eq!(through(&plan_released(), &p), None);
        prop_assert_eq!(through(&plan_released_by_bpf(), &p), None);
    }
}
