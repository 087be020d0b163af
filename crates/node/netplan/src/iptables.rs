//! Rules for `iptables-restore` and `ip6tables-restore`, and the differences between a namespace's rules and the
//! desired ones.
//!
//! Rules are written exactly as `iptables-save` prints them, so that comparing the current with the
//! desired state is comparing lines. All our rules are in chains of our own, whose names begin with
//! [`CHAIN_PREFIX`]; of the built-in chains only our jumps are compared.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::IpAddr,
};

use crate::{
    plan::admits_unknown,
    ruleset::{Action, ChainKind, Family, InboundGuard, Match, Rule, Ruleset},
    spec::{HostMember, HostSpec, marks},
};

/// The prefix of our chains' names.
pub const CHAIN_PREFIX: &str = "AMBIT_";

/// iptables table of our chains. Values sort in the order in which tables must be filled: the redirecting `nat` after
/// the tables that it depends on, the guards last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TableName {
    /// Table `raw`, evaluated before connection tracking.
    Raw,
    /// Table `mangle`: marks and routing.
    Mangle,
    /// Table `nat`: address translation.
    Nat,
    /// Table `filter`: the guards.
    Filter,
}

impl TableName {
    /// All tables in the order in which they must be filled.
    pub const ALL: [Self; 4] = [Self::Raw, Self::Mangle, Self::Nat, Self::Filter];

    /// Returns the table's name in iptables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Mangle => "mangle",
            Self::Nat => "nat",
            Self::Filter => "filter",
        }
    }
}

/// Ambit's chains, and the jumps to them, of one address family in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Ambit's chains with their rules (without the leading `-A CHAIN `).
    pub chains: BTreeMap<(TableName, String), Vec<String>>,
    /// Number of jumps from built-in chains to Ambit's chains, by table, built-in chain and chain of Ambit.
    pub jumps: BTreeMap<(TableName, String, String), usize>,
}

impl State {
    /// Whether there are no chains and jumps of Ambit's.
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.jumps.is_empty()
    }

    /// Whether guards of Ambit's are in use.
    pub fn has_guards(&self) -> bool {
        let mut jumps = self.jumps.keys();
        jumps.any(|(table, _, _)| *table == TableName::Filter)
    }
}

/// Returns the chains and jumps that implement a ruleset for one address family.
pub fn desired(ruleset: &Ruleset, family: Family) -> State {
    let mut state = State::default();
    if !ruleset.families.contains(&family) {
        return state;
    }
    for chain in &ruleset.chains {
        let rules: Vec<_> = chain
            .rules
            .iter()
            .filter(|rule| rule.family.is_none_or(|f| f == family))
            .flat_map(render_rule)
            .collect();
        insert(&mut state, chain.kind, rules);
    }
    state
}

/// Returns which packets the inbound guard in this state accepts.
pub fn inbound_guard(state: &State) -> InboundGuard {
    let (table, _, ours) = chain_location(ChainKind::GuardInput);
    let unknown = render_rule(&admits_unknown());
    match state.chains.get(&(table, ours.to_owned())) {
        None => InboundGuard::Missing,
        Some(rules) if rules.iter().any(|rule| unknown.contains(rule)) => {
            InboundGuard::AdmitsUnknown
        }
        Some(_) => InboundGuard::KnownOnly,
    }
}

/// Returns the desired rules in the node's namespace: one rule a member, since address sets would need `ipset`.
pub fn desired_host(spec: &HostSpec, members: &[HostMember], family: Family) -> State {
    let mut state = State::default();
    let (is_enabled, source) = match family {
        Family::V4 => (spec.ipv4, IpAddr::V4(spec.probe_v4)),
        Family::V6 => (spec.ipv6, IpAddr::V6(spec.probe_v6)),
    };
    if !is_enabled {
        return state;
    }
    let owner = match spec.kubelet_uid {
        Some(uid) => format!("--uid-owner {uid}"),
        None => "--socket-exists".into(),
    };
    // iptables cannot match kubelet's cgroup: the rule then records the member, and exempts no
    // process.
    let target = match spec.kubelet_cgroup {
        Some(_) => "RETURN".to_owned(),
        None => format!("SNAT --to-source {source}"),
    };
    let members = members
        .iter()
        .filter(|m| m.ip.is_ipv4() == (family == Family::V4));
    let rules = members.map(|member| {
        let port = member.port.map(|port| format!("--dport {port} "));
        format!(
            "-d {} -p tcp -m tcp {}--tcp-flags SYN,ACK SYN -m owner {owner} \
             -m comment --comment {} -j {target}",
            host_prefix(member.ip),
            port.unwrap_or_default(),
            quote(&member.uid)
        )
    });
    insert(&mut state, ChainKind::NatPostrouting, rules.collect());
    let pretended = format!("-s {} -j DROP", host_prefix(source));
    insert(&mut state, ChainKind::RawPrerouting, vec![pretended]);
    state
}

/// Returns the pod addresses and ports that the chain in the node's namespace has rules for.
pub fn host_members(state: &State) -> Vec<HostMember> {
    let (table, _, ours) = chain_location(ChainKind::NatPostrouting);
    let rules = state.chains.get(&(table, ours.to_owned()));
    rules
        .into_iter()
        .flatten()
        .filter_map(|rule| parse_member(rule))
        .collect()
}

/// Returns the number of packets that matched the rules of the node's chain, from the output of `iptables-save -c`.
pub fn exempted(text: &str) -> u64 {
    let (_, _, ours) = chain_location(ChainKind::NatPostrouting);
    let rules = text.lines().filter_map(|line| {
        let (counters, rule) = line.strip_prefix('[')?.split_once("] -A ")?;
        let (chain, rule) = rule.split_once(' ')?;
        let (packets, _) = counters.split_once(':')?;
        (chain == ours && rule.contains("-j SNAT")).then(|| packets.parse::<u64>().ok())?
    });
    rules.fold(0, u64::saturating_add)
}

fn parse_member(rule: &str) -> Option<HostMember> {
    let rest = rule.strip_prefix("-d ")?;
    let (address, rest) = rest.split_once(' ')?;
    let ip = address.split('/').next()?.parse().ok()?;
    let (options, rest) = rest.split_once("--comment ")?;
    let port = match options.split_once("--dport ") {
        Some((_, port)) => Some(port.split(' ').next()?.parse().ok()?),
        None => None,
    };
    let (uid, _) = rest.split_once(" -j ")?;
    Some(HostMember {
        ip,
        port,
        uid: uid.trim_matches('"').to_owned(),
    })
}

/// Quotes a rule's comment as `iptables-save` does: unless it consists of ASCII letters, digits, `_` and `-`.
fn quote(comment: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_-".contains(&b);
    if !comment.is_empty() && comment.bytes().all(plain) {
        comment.to_owned()
    } else {
        let safe: String = comment
            .chars()
            .filter(|c| !c.is_control() && *c != '"' && *c != '\\')
            .collect();
        format!("\"{safe}\"")
    }
}

fn insert(state: &mut State, kind: ChainKind, rules: Vec<String>) {
    let (table, builtin, ours) = chain_location(kind);
    state.chains.insert((table, ours.to_owned()), rules);
    state
        .jumps
        .insert((table, builtin.to_owned(), ours.to_owned()), 1);
}

/// Returns the table, the built-in chain and Ambit's chain for a kind of chain.
fn chain_location(kind: ChainKind) -> (TableName, &'static str, &'static str) {
    match kind {
        ChainKind::RawPrerouting => (TableName::Raw, "PREROUTING", "AMBIT_PRERT"),
        ChainKind::RawOutput => (TableName::Raw, "OUTPUT", "AMBIT_OUTPUT"),
        ChainKind::RouteOutput => (TableName::Mangle, "OUTPUT", "AMBIT_OUTPUT"),
        ChainKind::NatPrerouting => (TableName::Nat, "PREROUTING", "AMBIT_PRERT"),
        ChainKind::NatOutput => (TableName::Nat, "OUTPUT", "AMBIT_OUTPUT"),
        ChainKind::NatPostrouting => (TableName::Nat, "POSTROUTING", "AMBIT_POSTRT"),
        ChainKind::GuardInput => (TableName::Filter, "INPUT", "AMBIT_INPUT"),
        ChainKind::GuardForward => (TableName::Filter, "FORWARD", "AMBIT_FORWARD"),
        ChainKind::GuardOutput => (TableName::Filter, "OUTPUT", "AMBIT_OUTPUT"),
    }
}

fn host_prefix(ip: IpAddr) -> String {
    format!("{ip}/{}", if ip.is_ipv4() { 32 } else { 128 })
}

/// Fields of a rule, in the order in which `iptables-save` prints them.
#[derive(Default)]
struct RuleArguments {
    source: String,
    destination: String,
    input: String,
    output: String,
    protocol: String,
    /// Options of the `tcp` or `udp` match: source port, destination port, flags.
    ports: [String; 3],
    /// Match modules in the order of printing, in which `tcp` and `udp` have their place.
    modules: Vec<String>,
}

/// Renders a rule as one line for each action, since an iptables rule has one target only.
fn render_rule(rule: &Rule) -> Vec<String> {
    let mut line = RuleArguments::default();
    for one in &rule.matches {
        add_match(&mut line, one, rule.family);
    }
    let mut out = String::new();
    for part in [&line.source, &line.destination, &line.input, &line.output] {
        out.push_str(part);
    }
    if !line.protocol.is_empty() {
        // Writing to a String cannot fail.
        let _ = write!(out, "-p {} ", line.protocol);
        if line.ports.iter().any(|p| !p.is_empty()) {
            let _ = write!(out, "-m {} {}", line.protocol, line.ports.concat());
        }
    }
    for module in &line.modules {
        let _ = write!(out, "-m {module} ");
    }
    rule.actions
        .iter()
        .map(|action| format!("{out}{}", render_action(*action)))
        .collect()
}

fn add_match(line: &mut RuleArguments, one: &Match, family: Option<Family>) {
    let mask = marks::MASK;
    let [source_port, destination_port, flags] = &mut line.ports;
    match one {
        Match::Tcp => line.protocol = "tcp".into(),
        Match::Udp => line.protocol = "udp".into(),
        Match::TcpOpening => {
            line.protocol = "tcp".into();
            *flags = "--tcp-flags SYN,ACK SYN ".into();
        }
        Match::TcpWithoutSyn => {
            line.protocol = "tcp".into();
            *flags = "--tcp-flags SYN NONE ".into();
        }
        Match::TcpNotOpening => {
            line.protocol = "tcp".into();
            *flags = "! --tcp-flags SYN,ACK SYN ".into();
        }
        Match::TcpSynAck => {
            line.protocol = "tcp".into();
            *flags = "--tcp-flags SYN,ACK SYN,ACK ".into();
        }
        Match::InLoopback => line.input = "-i lo ".into(),
        Match::OutLoopback => line.output = "-o lo ".into(),
        Match::InInterface(name) => line.input = format!("-i {name} "),
        Match::NotSourcePort(port) => *source_port = format!("! --sport {port} "),
        Match::DestinationPort(port) => *destination_port = format!("--dport {port} "),
        Match::NotDestinationPort(port) => *destination_port = format!("! --dport {port} "),
        Match::Source(ip) => line.source = format!("-s {} ", host_prefix(*ip)),
        Match::LocalDestination => line.modules.push("addrtype --dst-type LOCAL".into()),
        Match::LoopbackDestination => {
            line.destination = match family {
                Some(Family::V6) => "-d ::1/128 ".into(),
                _ => "-d 127.0.0.0/8 ".into(),
            };
        }
        Match::Mark(mark) => line
            .modules
            .push(format!("mark --mark {mark:#x}/{mask:#x}")),
        Match::NotMark(mark) => line
            .modules
            .push(format!("mark ! --mark {mark:#x}/{mask:#x}")),
        Match::ConnectionMark(mark) => {
            line.modules
                .push(format!("connmark --mark {mark:#x}/{mask:#x}"));
        }
        Match::Reply => line.modules.push("conntrack --ctdir REPLY".into()),
        Match::Established => line.modules.push("conntrack --ctstate ESTABLISHED".into()),
        Match::LocalSocket(None) => line.modules.push("owner --socket-exists".into()),
        Match::LocalSocket(Some(uid)) => line.modules.push(format!("owner --uid-owner {uid}")),
        // Members are rules of their own here, see `desired_host`.
        // Guards of capture by BPF programs are nftables rules.
        Match::ExemptPod | Match::ProbePort | Match::SocketCgroup(_) | Match::SocketMark(_) => {}
    }
}

fn render_action(action: Action) -> String {
    match action {
        Action::Exempt => "-j RETURN".into(),
        Action::Redirect(port) => format!("-j REDIRECT --to-ports {port}"),
        Action::SourceNat(ip) => format!("-j SNAT --to-source {ip}"),
        Action::SetConnectionMark(mark) => {
            format!("-j CONNMARK --set-xmark {mark:#x}/{:#x}", marks::MASK)
        }
        Action::SetMark(mark) => format!("-j MARK --set-xmark {mark:#x}/{:#x}", marks::MASK),
        Action::RestoreMark => {
            "-j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff".into()
        }
        Action::OriginalZone(zone) => format!("-j CT --zone-orig {zone}"),
        Action::NoTrack => "-j CT --notrack".into(),
        // iptables counts every rule by itself.
        Action::Refuse => "-j REJECT --reject-with tcp-reset".into(),
        Action::Drop => "-j DROP".into(),
    }
}

/// Parses Ambit's chains and jumps from the output of `iptables-save`.
pub fn parse_save(text: &str) -> State {
    let mut state = State::default();
    let mut table = None;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = TableName::ALL.into_iter().find(|t| t.name() == name.trim());
            continue;
        }
        let Some(table) = table else { continue };
        if let Some(name) = line
            .strip_prefix(':')
            .and_then(|rest| rest.split(' ').next())
        {
            if name.starts_with(CHAIN_PREFIX) {
                state.chains.entry((table, name.to_owned())).or_default();
            }
        } else if let Some(rest) = line.strip_prefix("-A ") {
            let Some((chain, rule)) = rest.trim_end().split_once(' ') else {
                continue;
            };
            if chain.starts_with(CHAIN_PREFIX) {
                state
                    .chains
                    .entry((table, chain.to_owned()))
                    .or_default()
                    .push(rule.to_owned());
            } else if let Some(target) = rule.strip_prefix("-j ")
                && target.starts_with(CHAIN_PREFIX)
            {
                *state
                    .jumps
                    .entry((table, chain.to_owned(), target.to_owned()))
                    .or_default() += 1;
            }
        }
    }
    state
}

/// Describes each difference between the current and the desired state in a short phrase.
pub fn differences(current: &State, desired: &State) -> Vec<String> {
    let mut out = Vec::new();
    for (key @ (table, chain), rules) in &desired.chains {
        match current.chains.get(key) {
            None => out.push(format!(
                "chain {chain} of table {} is missing",
                table.name()
            )),
            Some(found) if found != rules => {
                out.push(format!(
                    "the rules of chain {chain} of table {} differ",
                    table.name()
                ));
            }
            Some(_) => {}
        }
    }
    for (table, chain) in current
        .chains
        .keys()
        .filter(|k| !desired.chains.contains_key(*k))
    {
        out.push(format!(
            "chain {chain} of table {} should not be there",
            table.name()
        ));
    }
    for key @ (table, builtin, ours) in desired.jumps.keys() {
        match current.jumps.get(key).copied().unwrap_or(0) {
            0 => out.push(format!(
                "{} {builtin} does not jump to {ours}",
                table.name()
            )),
            1 => {}
            n => out.push(format!(
                "{} {builtin} jumps {n} times to {ours}",
                table.name()
            )),
        }
    }
    for (table, builtin, ours) in current
        .jumps
        .keys()
        .filter(|k| !desired.jumps.contains_key(*k))
    {
        out.push(format!(
            "{} {builtin} should not jump to {ours}",
            table.name()
        ));
    }
    out
}

/// Builds the input for `iptables-restore --noflush` that turns the current state into the desired one; empty when they
/// are equal. Each table is committed in one step: redirects after the tables they need, guards after redirects.
/// Removal is in the reverse order.
pub fn restore_script(current: &State, desired: &State) -> String {
    let mut tables = TableName::ALL;
    let guards_go = current
        .chains
        .keys()
        .any(|key @ (table, _)| *table == TableName::Filter && !desired.chains.contains_key(key));
    if desired.is_empty() {
        tables.reverse();
    } else if guards_go {
        tables.rotate_right(1);
    }
    tables
        .into_iter()
        .map(|table| table_script(table, current, desired))
        .collect()
}

fn table_script(table: TableName, current: &State, desired: &State) -> String {
    let mut chains = String::new();
    let mut steps = String::new();
    let mut removals = String::new();
    let names: BTreeSet<_> = current
        .chains
        .keys()
        .chain(desired.chains.keys())
        .filter(|(t, _)| *t == table)
        .collect();
    for key @ (_, chain) in names {
        let (found, target) = (current.chains.get(key), desired.chains.get(key));
        if found == target {
            continue;
        }
        // With --noflush a chain line makes the chain, or empties it.
        let _ = writeln!(chains, ":{chain} - [0:0]");
        for rule in target.into_iter().flatten() {
            let _ = writeln!(steps, "-A {chain} {rule}");
        }
        if target.is_none() {
            let _ = writeln!(removals, "-X {chain}");
        }
    }
    let jumps: BTreeSet<_> = current
        .jumps
        .keys()
        .chain(desired.jumps.keys())
        .filter(|(t, _, _)| *t == table)
        .collect();
    for key @ (_, builtin, ours) in jumps {
        let found = current.jumps.get(key).copied().unwrap_or(0);
        let target = desired.jumps.get(key).copied().unwrap_or(0);
        // First in the chain: an accepting rule of others would otherwise let connections escape.
        if found < target {
            let _ = writeln!(steps, "-I {builtin} 1 -j {ours}");
        }
        for _ in target..found {
            let _ = writeln!(steps, "-D {builtin} -j {ours}");
        }
    }
    if chains.is_empty() && steps.is_empty() {
        return String::new();
    }
    format!("*{}\n{chains}{steps}{removals}COMMIT\n", table.name())
}
