//! Computes the rules that implement a [`RedirectionSpec`], with the reasons for each rule.
//!
//! Every hook that sees every packet costs each request several times over, so there are few such
//! (`raw-output`, `route-output` and the guards), and their first tests accept most packets. Everything
//! else is evaluated once a connection, by chains of type nat.
//!
//! Those redirect what connection tracking calls new, and the sender of packets controls what it calls
//! new: an entry from before the capture, one that a stray packet made, an opening that it takes for
//! invalid or does not track. So the redirects alone do not prevent a bypass. The guards do: they check
//! each opening after translation, independently of connection tracking, and refuse what is neither on
//! its way to the proxy nor exempt.
//!
//! A packet without SYN can open a connection too: an ACK with a valid SYN cookie, to a listener that has
//! lately overflowed. The secret of cookies is the kernel's, so anyone who can make namespaces on the
//! node can make valid cookies for any address. Therefore such packets pass only if connection tracking
//! knows their connection in both directions. Pre-capture connections are made known to it as capture
//! begins (`sys/src/conntrack/pre_capture.rs`): when new ones are redirected, and before the guards of
//! [`plan`] are there.
//!
//! Tried and left out, because it gained nothing that could be measured: keeping the proxy's tunnels
//! out of connection tracking. Looking at each packet to find them costs what tracking them does.

use std::net::IpAddr;

use ambit_model::{DNS_PORT, HBONE_PORT, INBOUND_PLAINTEXT_PORT, OUTBOUND_PORT, PROXY_MARK};

use crate::{
    ruleset::{Action, Chain, ChainKind, Family, Match, Rule, Ruleset},
    spec::{HostSpec, RedirectionSpec, SpecError, marks},
};

/// Returns the rules of an enrolled pod.
///
/// # Errors
/// When the specification itself is invalid.
pub fn plan(spec: &RedirectionSpec) -> Result<Ruleset, SpecError> {
    plan_with(spec, AcceptedNonSyn::Known)
}

/// Returns the rules of a pod whose pre-capture connections are not known to connection tracking
/// yet, because an earlier agent did not record them, or because that failed: like [`plan`], but
/// packets without SYN are accepted without a known connection.
///
/// # Errors
/// When the specification itself is invalid.
pub fn plan_capturing(spec: &RedirectionSpec) -> Result<Ruleset, SpecError> {
    plan_with(spec, AcceptedNonSyn::All)
}

/// Returns the rules of a pod with these `addresses` whose TCP is captured by BPF programs (the crate `bpf`): guards,
/// for which nothing is tracked or translated. Openings from outside need no guard, since the program for openings gives
/// them to the proxy, or refuses them; so does it with packets that only pretend to belong to a connection.
///
/// With DNS capture, rules redirect queries as in [`plan`], over UDP and TCP, and connection tracking sees only them
/// and UDP. They are few, unlike other openings: a connection's packets pass three tests that do not match.
///
/// # Errors
/// When the specification itself is invalid, or asks for what only translation can do.
pub fn plan_by_bpf(
    spec: &RedirectionSpec,
    addresses: &[IpAddr],
    translated: Translated,
) -> Result<Ruleset, SpecError> {
    spec.validate()?;
    if !spec.virtual_interfaces.is_empty() {
        return Err(SpecError::NeedsTranslation("capture of virtual interfaces"));
    }
    let chains = match (translated, spec.dns_capture) {
        (Translated::Nothing, false) => vec![],
        (Translated::Nothing | Translated::Dns, true) => translate_dns(dns_redirects().into()),
        (Translated::Dns, false) => plan_released_by_bpf().chains,
        (Translated::Connections, _) => keep_translated(spec),
    };
    let mut rules = bpf_guards(spec, addresses);
    rules
        .chains
        .extend(ruleset(spec.ipv4, spec.ipv6, chains).chains);
    Ok(rules)
}

/// Connections and queries that earlier rules have translated, and that are open while BPF programs capture the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translated {
    /// There are none.
    Nothing,
    /// Queries of DNS capture, which need [`plan_released_by_bpf`].
    Dns,
    /// Connections of a pod that rules captured before. They need what [`plan_released`] returns, until they end.
    Connections,
}

/// Returns the rules of a pod whose DNS was captured beside BPF programs, after it was unenrolled: translation of open
/// queries continues.
pub fn plan_released_by_bpf() -> Ruleset {
    let keep = rule([Match::Established], [Action::Exempt]);
    ruleset(true, true, translate_dns(vec![keep]))
}

/// Returns the chains that track UDP and TCP to port 53, and nothing else of TCP, and translate it by `rules`.
fn translate_dns(rules: Vec<Rule>) -> Vec<Chain> {
    let not_tracked = rule([Match::Tcp, Match::NotSourcePort(53)], [Action::NoTrack]);
    // Packets that arrive over loopback have their entry, or its absence, from when they were sent.
    let arriving = Chain {
        kind: ChainKind::RawPrerouting,
        rules: vec![not_tracked],
    };
    let leaving = Chain {
        kind: ChainKind::RawOutput,
        rules: vec![
            rule(
                [
                    Match::Tcp,
                    Match::NotDestinationPort(53),
                    Match::NotSourcePort(DNS_PORT),
                ],
                [Action::NoTrack],
            ),
            rule([Match::NotMark(PROXY_MARK)], [Action::Exempt]),
            query_zone(),
        ],
    };
    let translating = Chain {
        kind: ChainKind::NatOutput,
        rules: exempt_own().into_iter().chain(rules).collect(),
    };
    vec![arriving, leaving, translating]
}

/// Returns the guards of [`plan_by_bpf`]. Redirects may be in place beside them.
pub fn bpf_guards(spec: &RedirectionSpec, addresses: &[IpAddr]) -> Ruleset {
    let chains = vec![
        bpf_guard_input(addresses),
        guard_forward(spec),
        bpf_guard_output(),
    ];
    ruleset(spec.ipv4, spec.ipv6, chains)
}

/// TCP packets without SYN that the inbound guard accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AcceptedNonSyn {
    /// Packets of connections that connection tracking has seen in both directions.
    Known,
    /// All TCP packets without SYN.
    All,
}

impl AcceptedNonSyn {
    fn rule(self) -> Rule {
        match self {
            Self::Known => rule([Match::TcpWithoutSyn, Match::Established], [Action::Exempt]),
            Self::All => rule([Match::TcpWithoutSyn], [Action::Exempt]),
        }
    }
}

/// Returns the inbound guard's rule that accepts packets of unknown connections, as in [`plan_capturing`] and in the
/// rules of earlier agents; it identifies such a guard.
pub(crate) fn admits_unknown() -> Rule {
    AcceptedNonSyn::All.rule()
}

fn plan_with(
    spec: &RedirectionSpec,
    accepted_non_syn: AcceptedNonSyn,
) -> Result<Ruleset, SpecError> {
    spec.validate()?;
    let chains = vec![
        raw_output(spec),
        route_output(),
        nat_prerouting(spec),
        nat_output(spec),
        guard_input(spec, accepted_non_syn),
        guard_forward(spec),
        guard_output(),
    ];
    Ok(ruleset(spec.ipv4, spec.ipv6, chains))
}

/// Returns the rules of a pod that was unenrolled while it runs.
///
/// There is no redirection, but connections already in the proxy continue until they end. For that the
/// kernel must go on tracking and translating: one rule that matches on a connection's state keeps
/// tracking in the namespace, one chain of type nat keeps translation. Replies to spoofed sources must
/// still be routed back to the proxy, also those of connections that it opens from now on: tunnels reach
/// it until all other nodes know that the pod has left.
pub fn plan_released() -> Ruleset {
    ruleset(true, true, keep_translated(&RedirectionSpec::default()))
}

/// Returns the chains of [`plan_released`]; they also redirect queries if DNS is captured.
fn keep_translated(spec: &RedirectionSpec) -> Vec<Chain> {
    let mut rules = vec![mark_spoofed()];
    if spec.dns_capture {
        rules.extend(exempt_own());
        rules.extend(dns_redirects());
    }
    rules.push(rule([Match::Established], [Action::Exempt]));
    let keep = Chain {
        kind: ChainKind::NatOutput,
        rules,
    };
    vec![raw_output(spec), route_output(), keep]
}

/// Returns the rules of the node's namespace, one family at a time: connections of kubelet to the
/// probe ports of an enrolled pod get the source address that the pod's rules exempt. Other
/// connections of the node's processes are ordinary plaintext. Forwarded packets do not match; and
/// nothing that arrives at the node has that address, since such packets begin here.
///
/// The kernel knows the cgroup of a socket before routing only, and translates the source after it: a mark
/// on the opening connects the two.
///
/// `every_port`: also pods whose every port is exempt have rules.
pub fn host_ruleset(spec: &HostSpec, every_port: bool) -> Ruleset {
    let calls = |destination: Match, last: Option<Match>| {
        // Where connection tracking has just begun, an open connection counts as new with its next
        // packet, and its address must not change.
        let mut matches = vec![Match::TcpOpening, Match::LocalSocket(spec.kubelet_uid)];
        matches.push(destination);
        matches.extend(last);
        matches
    };
    let mark = spec.kubelet_cgroup.map(|_| Match::Mark(marks::KUBELET));
    let probe = |family, destination, address| Rule {
        family: Some(family),
        matches: calls(destination, mark.clone()),
        actions: vec![Action::SourceNat(address)],
    };
    let mut rules = Vec::new();
    let mut marking = Vec::new();
    for destination in every_port
        .then_some(Match::ExemptPod)
        .into_iter()
        .chain([Match::ProbePort])
    {
        for (family, cgroup) in [Family::V4, Family::V6]
            .into_iter()
            .filter_map(|family| Some((family, spec.kubelet_cgroup?)))
        {
            marking.push(Rule {
                family: Some(family),
                matches: calls(destination.clone(), Some(Match::SocketCgroup(cgroup))),
                actions: vec![Action::SetMark(marks::KUBELET)],
            });
        }
        rules.push(probe(Family::V4, destination.clone(), spec.probe_v4.into()));
        rules.push(probe(Family::V6, destination, spec.probe_v6.into()));
    }
    let probing = Chain {
        kind: ChainKind::NatPostrouting,
        rules,
    };
    let marking = Chain {
        kind: ChainKind::NatOutput,
        rules: marking,
    };
    let pretended = |address| from(address, vec![], Action::Drop);
    let pretending = Chain {
        kind: ChainKind::RawPrerouting,
        rules: vec![
            pretended(spec.probe_v4.into()),
            pretended(spec.probe_v6.into()),
        ],
    };
    Ruleset {
        policy_routing: false,
        ..ruleset(spec.ipv4, spec.ipv6, vec![pretending, marking, probing])
    }
}

fn ruleset(ipv4: bool, ipv6: bool, chains: Vec<Chain>) -> Ruleset {
    let is_enabled = |family| match family {
        Family::V4 => ipv4,
        Family::V6 => ipv6,
    };
    let families: Vec<_> = [Family::V4, Family::V6]
        .into_iter()
        .filter(|f| is_enabled(*f))
        .collect();
    let chains = chains
        .into_iter()
        .map(|chain| Chain {
            rules: restrict(chain.rules, &families),
            ..chain
        })
        .filter(|chain| !chain.rules.is_empty())
        .collect();
    Ruleset {
        families,
        chains,
        policy_routing: true,
    }
}

/// Restricts every rule to the enabled address family, if only one is enabled.
fn restrict(rules: Vec<Rule>, families: &[Family]) -> Vec<Rule> {
    let only = match families {
        [one] => Some(*one),
        _ => None,
    };
    rules
        .into_iter()
        .filter(|rule| rule.family.is_none_or(|family| families.contains(&family)))
        .map(|rule| Rule {
            family: rule.family.or(only),
            ..rule
        })
        .collect()
}

fn rule<const M: usize, const A: usize>(matches: [Match; M], actions: [Action; A]) -> Rule {
    Rule {
        family: None,
        matches: matches.into(),
        actions: actions.into(),
    }
}

fn from(address: IpAddr, mut matches: Vec<Match>, action: Action) -> Rule {
    let family = if address.is_ipv4() {
        Family::V4
    } else {
        Family::V6
    };
    matches.push(Match::Source(address));
    Rule {
        family: Some(family),
        matches,
        actions: vec![action],
    }
}

fn exempt_probes(spec: &RedirectionSpec) -> impl Iterator<Item = Rule> {
    let addresses: [IpAddr; 2] = [spec.probe_v4.into(), spec.probe_v6.into()];
    spec.probe_interfaces.iter().flat_map(move |name| {
        spec.probe_ports.iter().flat_map(move |port| {
            addresses.map(|address| {
                let mut matches = vec![Match::InInterface(name.clone()), Match::Tcp];
                matches.extend(port.map(Match::DestinationPort));
                from(address, matches, Action::Exempt)
            })
        })
    })
}

fn loopback_destination(mut matches: Vec<Match>, action: Action) -> [Rule; 2] {
    matches.push(Match::LoopbackDestination);
    [Family::V4, Family::V6].map(|family| Rule {
        family: Some(family),
        matches: matches.clone(),
        actions: vec![action],
    })
}

/// Returns the chain at `raw-output`, which treats packets of the proxy's own sockets; all others leave it at the first
/// rule.
fn raw_output(spec: &RedirectionSpec) -> Chain {
    let mut rules = vec![
        rule([Match::NotMark(PROXY_MARK)], [Action::Exempt]),
        // The proxy calling the application from the client's address.
        //
        // A zone of its own, because the port is of the pod's choosing and may be one that the client
        // itself uses towards this pod, whose connection is redirected: in one zone the two would be
        // the same connection to the kernel. Answers need no zone, they differ (the redirected
        // connection answers from 15006). What goes back to the pod's own clients (from 15001)
        // belongs to connections opened by them, found without a zone at once.
        //
        // A mark of its own, because the socket the application accepts may then inherit it, and its
        // answers are routed back to the proxy as they are sent.
        rule(
            [
                Match::OutLoopback,
                Match::Tcp,
                Match::NotSourcePort(OUTBOUND_PORT),
            ],
            [
                Action::OriginalZone(marks::ZONE),
                Action::SetMark(marks::SPOOFED),
            ],
        ),
    ];
    if spec.dns_capture {
        rules.push(query_zone());
    }
    Chain {
        kind: ChainKind::RawOutput,
        rules,
    }
}

/// Returns the rule with the zone of `raw_output` for the proxy's queries to the upstream resolver: the application's
/// own query from the same port to the same resolver is redirected, and outlives the application's socket.
fn query_zone() -> Rule {
    rule(
        [Match::Udp, Match::DestinationPort(53)],
        [Action::OriginalZone(marks::ZONE)],
    )
}

/// Returns the chain that routes the application's replies to a spoofed source to loopback instead of the wire. Only
/// replies: the proxy's own packets are routed correctly already. And only of sockets that did not inherit the mark,
/// since a changed mark costs a second route lookup for each packet.
fn route_output() -> Chain {
    let answers = [
        Match::ConnectionMark(marks::SPOOFED),
        Match::Reply,
        Match::NotMark(marks::SPOOFED),
    ];
    Chain {
        kind: ChainKind::RouteOutput,
        rules: vec![rule(answers, [Action::RestoreMark])],
    }
}

/// Returns the rule that marks connections from the proxy to the application, as in `raw_output`, so that replies are
/// identified by the connection's mark on any socket.
fn mark_spoofed() -> Rule {
    rule(
        [Match::OutLoopback, Match::Mark(marks::SPOOFED)],
        [Action::SetConnectionMark(marks::SPOOFED)],
    )
}

fn nat_prerouting(spec: &RedirectionSpec) -> Chain {
    let mut rules = Vec::new();
    for name in &spec.virtual_interfaces {
        rules.push(rule(
            [Match::InInterface(name.clone()), Match::TcpOpening],
            [Action::Redirect(OUTBOUND_PORT)],
        ));
    }
    if !spec.ingress_bypass {
        rules.push(rule([Match::InLoopback], [Action::Exempt]));
        rules.extend(exempt_probes(spec));
        // Translated, such packets would no longer be dropped by the kernel as loopback addresses
        // from a wire, and the proxy would reach listeners that only the pod itself may reach.
        rules.extend(loopback_destination(vec![], Action::Exempt));
        // Only packets for the pod itself: the proxy is no relay to other addresses.
        //
        // No exemption by mark: the proxy's packets arrive here only over loopback, and a mark that
        // some interface let through from the node must not allow a bypass.
        rules.push(rule(
            [
                Match::TcpOpening,
                Match::NotDestinationPort(HBONE_PORT),
                Match::LocalDestination,
            ],
            [Action::Redirect(INBOUND_PLAINTEXT_PORT)],
        ));
    }
    Chain {
        kind: ChainKind::NatPrerouting,
        rules,
    }
}

fn nat_output(spec: &RedirectionSpec) -> Chain {
    let mut rules = vec![mark_spoofed()];
    rules.extend(exempt_own());
    if spec.dns_capture {
        rules.extend(dns_redirects());
    }
    rules.push(rule([Match::TcpOpening], [Action::Redirect(OUTBOUND_PORT)]));
    Chain {
        kind: ChainKind::NatOutput,
        rules,
    }
}

/// Returns the rules that exempt connections of the pod to itself (127.0.0.1, ::1 and its own address), and the proxy's.
fn exempt_own() -> [Rule; 2] {
    [
        rule([Match::OutLoopback], [Action::Exempt]),
        rule([Match::Mark(PROXY_MARK)], [Action::Exempt]),
    ]
}

fn dns_redirects() -> [Rule; 2] {
    [Match::Udp, Match::TcpOpening].map(|protocol| {
        rule(
            [protocol, Match::DestinationPort(53)],
            [Action::Redirect(DNS_PORT)],
        )
    })
}

fn refuse_tcp() -> Rule {
    rule([Match::Tcp], [Action::Refuse])
}

/// Returns the guard against connection openings from outside: only those redirected to the proxy, and probes, may
/// reach a socket of the pod.
fn guard_input(spec: &RedirectionSpec, accepted_non_syn: AcceptedNonSyn) -> Chain {
    let mut rules = Vec::new();
    if !spec.ingress_bypass {
        rules.extend([
            rule([Match::InLoopback], [Action::Exempt]),
            accepted_non_syn.rule(),
        ]);
        // The kernel accepts these from no wire unless `route_localnet` is set.
        rules.extend(loopback_destination(vec![Match::Tcp], Action::Refuse));
        rules.extend(
            [INBOUND_PLAINTEXT_PORT, HBONE_PORT]
                .map(|port| rule([Match::Tcp, Match::DestinationPort(port)], [Action::Exempt])),
        );
        for name in &spec.virtual_interfaces {
            rules.push(rule(
                [
                    Match::InInterface(name.clone()),
                    Match::Tcp,
                    Match::DestinationPort(OUTBOUND_PORT),
                ],
                [Action::Exempt],
            ));
        }
        rules.extend(exempt_probes(spec));
        rules.extend([
            // Responses to openings of the proxy. A response to an opening of the application is
            // the proxy's own, over loopback.
            rule([Match::TcpSynAck, Match::Reply], [Action::Exempt]),
            refuse_tcp(),
        ]);
    }
    Chain {
        kind: ChainKind::GuardInput,
        rules,
    }
}

/// Returns the guard against connection openings that would pass through the pod: to another address, or out of a
/// virtual machine or container inside it. If inbound plaintext is not captured, only openings out of the named
/// interfaces.
fn guard_forward(spec: &RedirectionSpec) -> Chain {
    let mut rules = Vec::new();
    if spec.ingress_bypass {
        for name in &spec.virtual_interfaces {
            rules.push(rule(
                [Match::InInterface(name.clone()), Match::TcpOpening],
                [Action::Refuse],
            ));
        }
    } else {
        rules.extend([rule([Match::TcpNotOpening], [Action::Exempt]), refuse_tcp()]);
    }
    Chain {
        kind: ChainKind::GuardForward,
        rules,
    }
}

/// Returns the guard against the pod's own connection openings: only those of the proxy, and those that stay on
/// loopback, the target of a redirect, may leave.
fn guard_output() -> Chain {
    let mut rules = vec![
        rule([Match::OutLoopback], [Action::Exempt]),
        rule([Match::TcpNotOpening], [Action::Exempt]),
        rule([Match::Mark(PROXY_MARK)], [Action::Exempt]),
    ];
    // The hook knows the interface from before the redirect, but the address from after it.
    rules.extend(loopback_destination(vec![], Action::Exempt));
    rules.push(refuse_tcp());
    Chain {
        kind: ChainKind::GuardOutput,
        rules,
    }
}

/// Returns the rule for packets from outside that have guessed the addresses and ports of a captured connection, whose
/// own packets stay on loopback; it identifies the inbound guard of capture by BPF programs.
pub(crate) fn drops_guessed() -> Rule {
    rule(
        [Match::Tcp, Match::SocketMark(marks::OUTBOUND)],
        [Action::Drop],
    )
}

/// Returns the guard against packets from outside that pretend to be the pod's own.
fn bpf_guard_input(addresses: &[IpAddr]) -> Chain {
    let mut rules = vec![rule([Match::InLoopback], [Action::Exempt]), drops_guessed()];
    // The program for openings takes these for the pod's calls of itself. The kernel drops them in IPv4, unless
    // `accept_local` is set, but not in IPv6.
    let own = addresses
        .iter()
        .map(|address| from(*address, vec![Match::Tcp], Action::Drop));
    rules.extend(own);
    Chain {
        kind: ChainKind::GuardInput,
        rules,
    }
}

/// Returns the guard against the pod's own openings that no program has marked, such as those of a process that has
/// entered the pod's network namespace from another cgroup, and against packets of marked sockets that are not routed to
/// loopback.
fn bpf_guard_output() -> Chain {
    let mut chain = guard_output();
    // Before the rule for packets that open nothing, after the one for loopback.
    let leaving = rule([Match::Tcp, Match::Mark(marks::OUTBOUND)], [Action::Refuse]);
    chain.rules.insert(1, leaving);
    chain
}
