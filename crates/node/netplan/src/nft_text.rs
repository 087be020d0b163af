//! Renders rules as `nft list` prints them, for operators, golden files and `ambit` commands.

use std::fmt::Write as _;

use crate::{
    nft::{SetKey, set_name},
    ruleset::{Action, ChainKind, Family, Match, Rule, Ruleset},
    spec::marks,
};

/// Renders a ruleset as a table of the given name, one statement a line. `nft -f` accepts it.
pub fn render(table: &str, ruleset: &Ruleset) -> String {
    let mut out = format!("table inet {table} {{\n");
    for (one, has_port) in [(Match::ExemptPod, false), (Match::ProbePort, true)] {
        let mut rules = ruleset.chains.iter().flat_map(|chain| &chain.rules);
        if !rules.any(|rule| rule.matches.contains(&one)) {
            continue;
        }
        for family in ruleset.families.iter().copied() {
            let address = match family {
                Family::V4 => "ipv4_addr",
                Family::V6 => "ipv6_addr",
            };
            let port = if has_port { " . inet_service" } else { "" };
            let name = set_name(SetKey { family, has_port });
            // Writing to a String cannot fail.
            let _ = writeln!(out, "\tset {name} {{\n\t\ttype {address}{port}\n\t}}\n");
        }
    }
    for chain in &ruleset.chains {
        let (name, hook) = describe(chain.kind);
        let _ = writeln!(out, "\tchain {name} {{\n\t\ttype {hook}; policy accept;");
        for rule in &chain.rules {
            let _ = writeln!(out, "\t\t{}", render_rule(rule));
        }
        out.push_str("\t}\n\n");
    }
    out.truncate(out.trim_end().len());
    out.push_str("\n}\n");
    out
}

fn describe(kind: ChainKind) -> (&'static str, &'static str) {
    match kind {
        ChainKind::RawPrerouting => ("raw-prerouting", "filter hook prerouting priority raw"),
        ChainKind::RawOutput => ("raw-output", "filter hook output priority raw"),
        ChainKind::RouteOutput => ("route-output", "route hook output priority mangle"),
        ChainKind::NatPrerouting => ("nat-prerouting", "nat hook prerouting priority dstnat"),
        ChainKind::NatOutput => ("nat-output", "nat hook output priority -100"),
        ChainKind::NatPostrouting => ("nat-postrouting", "nat hook postrouting priority srcnat"),
        ChainKind::GuardInput => ("guard-input", "filter hook input priority filter"),
        ChainKind::GuardForward => ("guard-forward", "filter hook forward priority filter"),
        ChainKind::GuardOutput => ("guard-output", "filter hook output priority filter"),
    }
}

fn render_rule(rule: &Rule) -> String {
    let mut parts = Vec::new();
    if let Some(family) = rule.family {
        let name = if family == Family::V4 { "ipv4" } else { "ipv6" };
        parts.push(format!("meta nfproto {name}"));
    }
    let protocol = if rule.matches.contains(&Match::Udp) {
        "udp"
    } else {
        "tcp"
    };
    parts.extend(
        rule.matches
            .iter()
            .map(|one| render_match(one, protocol, rule.family)),
    );
    parts.extend(rule.actions.iter().map(|action| render_action(*action)));
    parts.join(" ")
}

fn render_match(one: &Match, protocol: &str, family: Option<Family>) -> String {
    let mask = marks::MASK;
    match one {
        Match::Tcp => "meta l4proto tcp".into(),
        Match::Udp => "meta l4proto udp".into(),
        Match::TcpOpening => "meta l4proto tcp tcp flags & (syn | ack) == syn".into(),
        Match::TcpWithoutSyn => "meta l4proto tcp tcp flags & syn == 0x0".into(),
        Match::TcpNotOpening => "meta l4proto tcp tcp flags & (syn | ack) != syn".into(),
        Match::TcpSynAck => "meta l4proto tcp tcp flags & (syn | ack) == (syn | ack)".into(),
        Match::LocalDestination => "fib daddr type local".into(),
        Match::LoopbackDestination => match family {
            Some(Family::V6) => "ip6 daddr ::1".into(),
            _ => "ip daddr 127.0.0.0/8".into(),
        },
        Match::InLoopback => "iif \"lo\"".into(),
        Match::OutLoopback => "oif \"lo\"".into(),
        Match::InInterface(name) => format!("iifname \"{name}\""),
        Match::NotSourcePort(port) => format!("{protocol} sport != {port}"),
        Match::DestinationPort(port) => format!("{protocol} dport {port}"),
        Match::NotDestinationPort(port) => format!("{protocol} dport != {port}"),
        Match::Source(ip) => format!("{} saddr {ip}", if ip.is_ipv4() { "ip" } else { "ip6" }),
        Match::ExemptPod | Match::ProbePort => {
            let family = family.unwrap_or(Family::V4);
            let ip = if family == Family::V4 { "ip" } else { "ip6" };
            let has_port = *one == Match::ProbePort;
            let port = if has_port { " . tcp dport" } else { "" };
            format!(
                "{ip} daddr{port} @{}",
                set_name(SetKey { family, has_port })
            )
        }
        Match::Mark(mark) => format!("meta mark & {mask:#x} == {mark:#x}"),
        Match::NotMark(mark) => format!("meta mark & {mask:#x} != {mark:#x}"),
        Match::ConnectionMark(mark) => format!("ct mark & {mask:#x} == {mark:#x}"),
        Match::Reply => "ct direction reply".into(),
        Match::Established => "ct state established".into(),
        Match::SocketCgroup(cgroup) => {
            format!("socket cgroupv2 level {} {}", cgroup.level, cgroup.id)
        }
        Match::SocketMark(mark) => format!("socket mark & {mask:#x} == {mark:#x}"),
        Match::LocalSocket(None) => format!("meta skuid != {}", u32::MAX),
        Match::LocalSocket(Some(uid)) => format!("meta skuid {uid}"),
    }
}

fn render_action(action: Action) -> String {
    match action {
        Action::Exempt => "accept".into(),
        Action::Redirect(port) => format!("redirect to :{port}"),
        Action::SourceNat(ip) => {
            let family = if ip.is_ipv4() { "ip" } else { "ip6" };
            format!("counter snat {family} to {ip}")
        }
        Action::SetConnectionMark(mark) => {
            format!("ct mark set ct mark & {:#x} | {mark:#x}", !marks::MASK)
        }
        Action::SetMark(mark) => {
            format!("meta mark set meta mark & {:#x} | {mark:#x}", !marks::MASK)
        }
        Action::RestoreMark => "meta mark set ct mark".into(),
        Action::OriginalZone(zone) => format!("ct original zone set {zone}"),
        Action::NoTrack => "notrack".into(),
        Action::Refuse => "counter reject with tcp reset".into(),
        Action::Drop => "counter drop".into(),
    }
}
