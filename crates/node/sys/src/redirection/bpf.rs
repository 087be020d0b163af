//! Captures a pod's TCP by BPF programs (the crate `bpf`) instead of rules that translate addresses: without
//! connection tracking, and so without its cost for each packet. Only captured DNS queries are translated by rules.
//!
//! Differences from the other backends that callers must know: capture of virtual interfaces is not possible
//! ([`plan_by_bpf`] refuses it). The proxy enters its listeners into the programs' map, and calls the application from
//! sockets that are bound to loopback and have the mark [`marks::SPOOFED`]. A process that has entered the pod's
//! network namespace from a cgroup that is not the pod's is refused by a guard instead of captured.
//!
//! A pod changes between this backend and nftables while its connections continue. [`apply`] takes a pod over: it
//! attaches the programs before it replaces the redirects, and leaves the rules that translated connections need until
//! they end. [`apply_rules`] does the reverse. At every moment one of the two captures, and where both do, the
//! result is the same.

use std::{
    collections::{BTreeSet, HashSet},
    fs::File,
    net::{IpAddr, Ipv6Addr},
    path::Path,
};

use ambit_bpf::{Capture, Marks, NetnsCookie, Probe, Settings, check_overridden};
use ambit_model::{HBONE_PORT, INBOUND_PLAINTEXT_PORT, OUTBOUND_PORT, PROXY_MARK};
use ambit_netplan::{
    Backend, ChainKind, Family, PolicyRouting, RedirectionSpec, Ruleset, Translated, marks,
    nft::{self, POD_TABLE, Table, chain_name},
    outbound_routing, plan_by_bpf, plan_released_by_bpf, policy_routing,
};
use socket2::{Domain, Socket, Type};

use super::{
    Applied, Drift, FOREIGN_RULES_MESSAGE, RedirectionError,
    backend::{RedirectionBackend, change_table, describe, is_guard},
    ensure_routing, foreign, inside, open_routing, routing_drift_of,
    settings::{
        accepted_sockets_are_marked, family_enabled, mark_accepted_sockets, marks_are_reflected,
        move_openings, reflect_marks, track_for_the_guards,
    },
};
use crate::{
    addresses,
    netns::Netns,
    nft::Nft,
    sock_diag::{self, TcpSocket, TcpStateFilter},
};

/// Mark of the proxy's connections to the application of a pod that BPF programs capture. They are also bound to
/// loopback.
pub const APPLICATION_CALL_MARK: u32 = marks::SPOOFED;

/// Mark of the connections that the proxy accepts from the application of a pod that BPF programs capture. Sockets in
/// TIME-WAIT answer with the mark of the packet that they answer (`fwmark_reflect`): with the proxy's mark such an answer
/// would leave the pod, and the connection would never end.
pub const CAPTURED_CONNECTION_MARK: u32 = marks::OUTBOUND;

/// Index of the loopback interface, which is the first one of every namespace.
const LOOPBACK_INTERFACE: u32 = 1;

/// Pod that BPF programs capture.
#[derive(Clone, Copy, Debug)]
pub struct BpfPod<'a> {
    /// Network namespace of the pod.
    pub netns: &'a Netns,
    /// Directory of the pod's cgroup (version 2), which has those of its containers.
    pub cgroup: &'a Path,
    /// Directory of the pod's own, on a bpffs, in which its programs are pinned.
    pub pins: &'a Path,
}

/// Desired state of the namespace.
struct Desired {
    /// Guards, and the rules of connections that another backend has translated.
    rules: Ruleset,
    routings: Vec<PolicyRouting>,
    settings: Settings,
}

/// Returns the cookie of a namespace, by which the directory of its programs is named.
///
/// # Errors
/// When the namespace cannot be entered, or the kernel is older than 5.14.
pub fn cookie_of(netns: &Netns) -> std::io::Result<NetnsCookie> {
    netns.run(own_cookie)?
}

/// Checks that BPF programs can capture the pod, sets the routes, and creates the map of the proxy's listeners, which
/// the proxy enters before [`apply`] attaches the programs. The proxy of a pod with this map calls the application as
/// this backend demands, which works under the others too.
///
/// # Errors
/// When the specification is not possible, programs of others would be switched off ([`check_overridden`]), or the
/// kernel refuses the programs' maps.
pub fn prepare(pod: &BpfPod<'_>, spec: &RedirectionSpec) -> Result<(), RedirectionError> {
    check_overridden(pod.cgroup)?;
    inside(pod.netns, || {
        captured_by_others()?;
        ensure_routing(&desired(spec)?.routings)?;
        Ok(Capture::at(pod.pins).prepare()?)
    })
}

/// Whether a proxy has entered its listeners since the last call of [`prepare`].
///
/// # Errors
/// When the programs' maps cannot be read.
pub fn has_proxy(pins: &Path) -> Result<bool, RedirectionError> {
    Ok(Capture::at(pins).has_proxy()?)
}

/// Sets the pod's redirection to `spec`, after [`prepare`]. Idempotent.
///
/// Routes come first and guards last, so that no opening meets a guard whose program it has missed. Open connections
/// bypass the programs, and the guards let them pass.
///
/// # Errors
/// When the kernel refuses a step, programs of others would be switched off ([`check_overridden`]), no proxy has entered its listeners before programs begin to capture, or the pod is
/// captured by iptables or by Istio's agent: their translated connections would break. What was changed before stays,
/// and another attempt continues from there.
pub fn apply(pod: &BpfPod<'_>, spec: &RedirectionSpec) -> Result<Applied, RedirectionError> {
    let cgroup = File::open(pod.cgroup).map_err(|source| RedirectionError::Cgroup {
        path: pod.cgroup.to_owned(),
        source,
    })?;
    check_overridden(pod.cgroup)?;
    inside(pod.netns, || {
        captured_by_others()?;
        let desired = desired(spec)?;
        let capture = Capture::at(pod.pins);
        // Where programs capture already, openings are refused until a proxy has entered its listeners.
        let captures = capture.is_complete()? && !capture.is_paused()?;
        let has_proxy = capture.is_prepared() && capture.has_proxy()?;
        if !captures && !has_proxy {
            return Err(RedirectionError::NoProxy {
                path: pod.pins.to_owned(),
            });
        }
        let mut drift = ensure_routing(&desired.routings)?;
        // Routes may be there because the pod was prepared.
        drift.nothing_found = true;
        mark_accepted_sockets(true);
        if !accepted_sockets_are_marked() {
            return Err(RedirectionError::AcceptedMarks);
        }
        reflect_marks(true);
        move_openings(true);
        let lowered = nft::lower(&desired.rules);
        let mut redirects = Drift::of_nothing();
        if spec.dns_capture {
            // Before the programs exempt these openings.
            redirects = change_table(POD_TABLE, |table| Some(with_redirects(table, &lowered)))?;
        }
        let programs = program_drift(pod, &desired.settings)?;
        if !programs.is_empty() {
            capture.install(cgroup, pod.netns, &desired.settings)?;
        }
        let mut rules = change_table(POD_TABLE, |_| Some(lowered.clone()))?;
        // This call has just created the table.
        rules.nothing_found |= redirects.nothing_found && !redirects.is_empty();
        if !rules.is_empty() {
            track_for_the_guards(false);
        }
        for part in [redirects, programs, rules] {
            drift.add(part);
        }
        Ok(drift.into_applied())
    })
}

/// Sets the pod's redirection to `spec` by rules, as [`redirection::apply`](super::apply) does, also in a pod that BPF
/// programs capture. Idempotent.
///
/// The programs stop capturing once the rules are in place. They are removed by the next call, so that openings that
/// were marked just before still reach the proxy.
///
/// # Errors
/// Like [`redirection::apply`](super::apply), before anything else is changed; or when the programs could not be
/// removed.
pub fn apply_rules(
    netns: &Netns,
    pins: &Path,
    spec: &RedirectionSpec,
) -> Result<Applied, RedirectionError> {
    let applied = super::apply(netns, spec)?;
    let capture = Capture::at(pins);
    let captures = capture.is_complete().and_then(|complete| {
        let captures = complete && !capture.is_paused()?;
        if captures {
            capture.pause()?;
        }
        Ok(captures)
    });
    // Pins can be removed also where the kernel refuses to open them.
    if !matches!(captures, Ok(true)) && capture.exists() {
        capture.remove()?;
    }
    Ok(applied)
}

/// Reports the changes that [`apply`] would make, without making them.
///
/// # Errors
/// When the namespace or the programs cannot be read.
pub fn observe(pod: &BpfPod<'_>, spec: &RedirectionSpec) -> Result<Drift, RedirectionError> {
    inside(pod.netns, || {
        let desired = desired(spec)?;
        let mut drift = Drift::of_nothing();
        let mut routing = open_routing()?;
        for one in &desired.routings {
            routing_drift_of(&mut routing, one, &mut drift)?;
        }
        if !accepted_sockets_are_marked() {
            drift
                .items
                .push("accepted sockets do not inherit marks".to_owned());
        }
        if !marks_are_reflected() {
            drift.items.push("resets do not inherit marks".to_owned());
        }
        let current = Nft::open()?.read(POD_TABLE)?;
        let target = nft::lower(&desired.rules);
        let changes = nft::diff(current.as_ref(), Some(&target));
        for part in [
            program_drift(pod, &desired.settings)?,
            describe(current.as_ref(), &changes),
        ] {
            drift.add(part);
        }
        let found = foreign::find()?;
        drift.nothing_found &= found.is_absent();
        if found.is_present() {
            drift.items.push(FOREIGN_RULES_MESSAGE.to_owned());
        }
        Ok(drift)
    })
}

/// Removes redirection from a running pod: new connections bypass the proxy, those in the proxy continue.
///
/// The programs stay until [`purge`]: openings that were marked before still reach the proxy. So do the routes.
///
/// # Errors
/// When something could not be removed.
pub fn release(netns: &Netns, pins: &Path) -> Result<(), RedirectionError> {
    // The guards first: they refuse what the programs no longer capture.
    match inside(netns, translated_by_table)? {
        Translated::Nothing => inside(netns, || change_table(POD_TABLE, |_| None)).map(drop)?,
        Translated::Dns => {
            let kept = nft::lower(&plan_released_by_bpf());
            inside(netns, || change_table(POD_TABLE, |_| Some(kept.clone()))).map(drop)?;
        }
        Translated::Connections => super::release(netns)?,
    }
    let capture = Capture::at(pins);
    if capture.is_complete()? {
        return Ok(capture.pause()?);
    }
    Ok(capture.remove()?)
}

/// Removes all that [`apply`] has set, including what [`release`] leaves. Connections in the proxy break.
///
/// # Errors
/// When something could not be removed.
pub fn purge(netns: &Netns, pins: &Path) -> Result<(), RedirectionError> {
    super::purge(netns)?;
    inside(netns, || {
        Capture::at(pins).remove()?;
        reflect_marks(false);
        let mut routing = open_routing()?;
        for (family, any) in [
            (Family::V4, IpAddr::from([0, 0, 0, 0])),
            (Family::V6, Ipv6Addr::UNSPECIFIED.into()),
        ] {
            let outbound = PolicyRouting {
                source: None,
                ..outbound_routing(any)
            };
            if family_enabled(family) {
                routing
                    .remove(&outbound)
                    .map_err(|source| RedirectionError::Routing { family, source })?;
            }
        }
        Ok(())
    })
}

/// Computes the desired state from the specification and the addresses of the calling thread's namespace.
fn desired(spec: &RedirectionSpec) -> Result<Desired, RedirectionError> {
    let found = addresses::dump_addresses().map_err(RedirectionError::Addresses)?;
    let interfaces: BTreeSet<_> = found.iter().map(|address| address.interface).collect();
    let interfaces = interfaces.len() - usize::from(interfaces.contains(&LOOPBACK_INTERFACE));
    if interfaces > 1 {
        return Err(RedirectionError::Interfaces(interfaces));
    }
    let own = found.into_iter().map(|address| address.ip);
    let own: BTreeSet<IpAddr> = own.filter(|ip| !ip.is_loopback()).collect();
    let addresses: Vec<_> = own.iter().copied().collect();
    let mut rules = plan_by_bpf(spec, &addresses, Translated::Nothing)?;
    if let Some(table) = Nft::open()?.read(POD_TABLE)? {
        let translated = translated_by(&table);
        let kept = plan_by_bpf(spec, &addresses, translated)?;
        // Other chains redirect, and translate connections until they are replaced.
        let redirects = !has_only_chains_of(&table, &nft::lower(&kept));
        let is_open = translated == Translated::Connections && has_translated_connections(&own)?;
        if redirects || is_open {
            rules = kept;
        }
    }
    let families: Vec<_> = rules
        .families
        .iter()
        .copied()
        .filter(|f| family_enabled(*f))
        .collect();
    let mut routings: Vec<_> = families.iter().map(|f| policy_routing(*f)).collect();
    for family in families {
        // Without an address of a family there are no connections of it, which a guard would refuse anyway.
        let source = own
            .iter()
            .find(|ip| ip.is_ipv4() == (family == Family::V4) && !is_link_local(**ip));
        routings.extend(source.map(|ip| outbound_routing(*ip)));
    }
    Ok(Desired {
        rules,
        routings,
        settings: settings(spec, own)?,
    })
}

fn settings(
    spec: &RedirectionSpec,
    addresses: BTreeSet<IpAddr>,
) -> Result<Settings, RedirectionError> {
    let netns = own_cookie().map_err(RedirectionError::Addresses)?;
    let socket =
        Socket::new(Domain::IPV4, Type::DGRAM, None).map_err(RedirectionError::Addresses)?;
    let mut probes = BTreeSet::new();
    for name in &spec.probe_interfaces {
        // An interface that does not exist (yet) has no probes.
        if let Ok(interface) = rustix::net::netdevice::name_to_index(&socket, name) {
            let port = |port| Probe { interface, port };
            probes.extend(spec.probe_ports.iter().map(port));
        }
    }
    Ok(Settings {
        netns,
        outbound: true,
        inbound: !spec.ingress_bypass,
        exempt_dns: spec.dns_capture,
        marks: Marks {
            mask: marks::MASK,
            proxy: PROXY_MARK,
            outbound: marks::OUTBOUND,
            spoofed: marks::SPOOFED,
        },
        tunnel_port: HBONE_PORT,
        addresses,
        probe_v4: spec.probe_v4,
        probe_v6: spec.probe_v6,
        probes,
    })
}

/// Returns the cookie of the calling thread's namespace.
fn own_cookie() -> std::io::Result<NetnsCookie> {
    NetnsCookie::of(Socket::new(Domain::IPV4, Type::DGRAM, None)?)
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

fn program_drift(pod: &BpfPod<'_>, settings: &Settings) -> Result<Drift, RedirectionError> {
    let capture = Capture::at(pod.pins);
    let mut drift = Drift::of_nothing();
    if !capture.is_complete()? {
        drift.items.push("the BPF programs are missing".to_owned());
        return Ok(drift);
    }
    drift.nothing_found = false;
    if !capture.has(settings)? {
        drift
            .items
            .push("the settings of the BPF programs differ".to_owned());
    }
    Ok(drift)
}

/// Fails if iptables or Istio's agent captures the namespace.
fn captured_by_others() -> Result<(), RedirectionError> {
    let present = RedirectionBackend::backends_in_use()?;
    let mut others = present.into_iter().map(RedirectionBackend::kind);
    if let Some(backend) = others.find(|kind| *kind != Backend::Nftables) {
        return Err(RedirectionError::CapturedBy(backend.name()));
    }
    if !foreign::find()?.is_absent() {
        return Err(RedirectionError::CapturedBy("Istio's agent"));
    }
    Ok(())
}

/// Returns what the table translates in the calling thread's namespace.
fn translated_by_table() -> Result<Translated, RedirectionError> {
    let table = Nft::open()?.read(POD_TABLE)?;
    Ok(table.map_or(Translated::Nothing, |table| translated_by(&table)))
}

/// Returns what Ambit's table translates. Capture by rules has a chain for the application's replies; capture by BPF
/// programs translates queries alone, and none without DNS capture.
fn translated_by(table: &Table) -> Translated {
    if table
        .chains
        .contains_key(chain_name(ChainKind::RouteOutput))
    {
        Translated::Connections
    } else if table.chains.keys().all(|name| is_guard(name)) {
        Translated::Nothing
    } else {
        Translated::Dns
    }
}

/// Returns the present table with the chains of `desired`, except guards. Where rules capture, chains that exist stay:
/// they redirect all openings, queries too.
fn with_redirects(present: Option<&Table>, desired: &Table) -> Table {
    let mut table = present.cloned().unwrap_or_default();
    let is_guarded = table
        .chains
        .contains_key(chain_name(ChainKind::GuardOutput));
    let is_captured_by_rules = is_guarded && !nft::has_bpf_guards(&table);
    for (name, chain) in &desired.chains {
        let stays = is_captured_by_rules && table.chains.contains_key(name);
        if !is_guard(name) && !stays {
            table.chains.insert(name.clone(), chain.clone());
        }
    }
    table
}

/// Whether each chain of a table, except guards, is also one of the other table, with the same rules.
fn has_only_chains_of(table: &Table, other: &Table) -> bool {
    table.chains.iter().all(|(name, chain)| {
        is_guard(name)
            || other
                .chains
                .get(name)
                .is_some_and(|same| same.rules == chain.rules)
    })
}

/// Whether connections are open that the rules of another backend have translated, or that the proxy has opened under
/// them to the application at one of the addresses `own`.
fn has_translated_connections(own: &BTreeSet<IpAddr>) -> Result<bool, RedirectionError> {
    let sockets =
        sock_diag::list_sockets(TcpStateFilter::InUse).map_err(RedirectionError::Connections)?;
    let has_mark = |socket: &TcpSocket, mark| socket.mark & marks::MASK == mark;
    // Other ends of connections that programs gave to the proxy.
    let captured: HashSet<_> = sockets
        .iter()
        .filter(|socket| has_mark(socket, marks::OUTBOUND))
        .map(|socket| (socket.remote, socket.local))
        .collect();
    Ok(sockets.iter().any(|socket| {
        let TcpSocket { local, remote, .. } = socket;
        let is_redirected = [OUTBOUND_PORT, INBOUND_PLAINTEXT_PORT].contains(&local.port());
        let is_call = own.contains(&remote.ip()) && !captured.contains(&(*local, *remote));
        has_mark(socket, PROXY_MARK) && (is_redirected || is_call)
    }))
}
