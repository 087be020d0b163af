//! Captures a pod's TCP by BPF programs (the crate `bpf`) instead of rules that translate addresses: without
//! connection tracking, and so without its cost for each packet.
//!
//! Differences from the other backends that callers must know: DNS capture and virtual interfaces are not possible
//! ([`plan_by_bpf`] refuses them). The proxy enters its listeners into the programs' map, and calls the application from
//! sockets that are bound to loopback and have the mark [`marks::SPOOFED`]. A process that has entered the pod's
//! network namespace from a cgroup that is not the pod's is refused by a guard instead of captured.
//!
//! A pod changes between this backend and another only by [`purge`], which breaks connections in the proxy:
//! [`apply`] refuses a pod of another backend, and the callers of `redirection::apply` must keep it from pods of this
//! one.

use std::{
    collections::BTreeSet,
    fs::File,
    net::{IpAddr, Ipv6Addr},
    path::Path,
};

use ambit_bpf::{Capture, Marks, NetnsCookie, Probe, Settings};
use ambit_model::{HBONE_PORT, PROXY_MARK};
use ambit_netplan::{
    Backend, ChainKind, Family, PolicyRouting, RedirectionSpec, Ruleset, marks,
    nft::{self, POD_TABLE, chain_name},
    outbound_routing, plan_by_bpf, policy_routing,
};
use socket2::{Domain, Socket, Type};

use super::{
    Applied, Drift, FOREIGN_RULES_MESSAGE, RedirectionError,
    backend::{RedirectionBackend, change_table, describe},
    ensure_routing, foreign, inside, open_routing, routing_drift_of,
    settings::{accepted_sockets_are_marked, family_enabled, mark_accepted_sockets, move_openings},
};
use crate::{addresses, netns::Netns, nft::Nft};

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
    guards: Ruleset,
    routings: Vec<PolicyRouting>,
    settings: Settings,
}

/// Creates the map of the proxy's listeners, which the proxy enters before [`apply`] attaches the programs.
///
/// # Errors
/// When the kernel refuses the programs' maps.
pub fn prepare(pod: &BpfPod<'_>) -> Result<(), RedirectionError> {
    Ok(Capture::at(pod.pins).prepare()?)
}

/// Sets the pod's redirection to `spec`. Idempotent.
///
/// Routes come first and guards last, so that no opening meets a guard whose program it has missed. Open connections
/// bypass the programs, and the guards let them pass.
///
/// # Errors
/// When the kernel refuses a step, or the pod is captured by another backend or by Istio's agent: their
/// translated connections would break. What was changed before stays, and another attempt continues from there.
pub fn apply(pod: &BpfPod<'_>, spec: &RedirectionSpec) -> Result<Applied, RedirectionError> {
    let cgroup = File::open(pod.cgroup).map_err(|source| RedirectionError::Cgroup {
        path: pod.cgroup.to_owned(),
        source,
    })?;
    inside(pod.netns, || {
        captured_by_others()?;
        let desired = desired(spec)?;
        let mut drift = ensure_routing(&desired.routings)?;
        mark_accepted_sockets(true);
        if !accepted_sockets_are_marked() {
            return Err(RedirectionError::AcceptedMarks);
        }
        move_openings(true);
        let programs = program_drift(pod, &desired.settings)?;
        if !programs.is_empty() {
            Capture::at(pod.pins).install(cgroup, pod.netns, &desired.settings)?;
        }
        let lowered = nft::lower(&desired.guards);
        let guards = change_table(POD_TABLE, |_| Some(lowered.clone()))?;
        for part in [programs, guards] {
            drift.nothing_found &= part.nothing_found;
            drift.items.extend(part.items);
        }
        Ok(drift.into_applied())
    })
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
        let current = Nft::open()?.read(POD_TABLE)?;
        let target = nft::lower(&desired.guards);
        let changes = nft::diff(current.as_ref(), Some(&target));
        for part in [
            program_drift(pod, &desired.settings)?,
            describe(current.as_ref(), &changes),
        ] {
            drift.nothing_found &= part.nothing_found;
            drift.items.extend(part.items);
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
pub fn release(pod: &BpfPod<'_>) -> Result<(), RedirectionError> {
    inside(pod.netns, || {
        // The guards first: they refuse what the programs no longer capture.
        if only_guards()? {
            change_table(POD_TABLE, |_| None)?;
        }
        let capture = Capture::at(pod.pins);
        if capture.is_complete()? {
            capture.pause()?;
            return Ok(());
        }
        Ok(capture.remove()?)
    })
}

/// Removes all that [`apply`] has set, including what [`release`] leaves. Connections in the proxy break.
///
/// # Errors
/// When something could not be removed.
pub fn purge(pod: &BpfPod<'_>) -> Result<(), RedirectionError> {
    inside(pod.netns, || {
        if only_guards()? {
            change_table(POD_TABLE, |_| None)?;
        }
        Capture::at(pod.pins).remove()?;
        let mut routing = open_routing()?;
        let mut all = Vec::new();
        for (family, any) in [
            (Family::V4, IpAddr::from([0, 0, 0, 0])),
            (Family::V6, Ipv6Addr::UNSPECIFIED.into()),
        ] {
            if family_enabled(family) {
                let outbound = PolicyRouting {
                    source: None,
                    ..outbound_routing(any)
                };
                all.extend([policy_routing(family), outbound]);
            }
        }
        for one in all {
            routing
                .remove(&one)
                .map_err(|source| RedirectionError::Routing {
                    family: one.family,
                    source,
                })?;
        }
        mark_accepted_sockets(false);
        move_openings(false);
        Ok(())
    })
}

/// Computes the desired state from the specification and the addresses of the calling thread's namespace.
fn desired(spec: &RedirectionSpec) -> Result<Desired, RedirectionError> {
    let here = Netns::current().map_err(RedirectionError::Enter)?;
    let found = addresses::addresses_in(&here).map_err(RedirectionError::Addresses)?;
    let own: BTreeSet<IpAddr> = found.into_iter().filter(|ip| !ip.is_loopback()).collect();
    let guards = plan_by_bpf(spec, &own.iter().copied().collect::<Vec<_>>())?;
    let families: Vec<_> = guards
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
        guards,
        routings,
        settings: settings(spec, own)?,
    })
}

fn settings(
    spec: &RedirectionSpec,
    addresses: BTreeSet<IpAddr>,
) -> Result<Settings, RedirectionError> {
    let socket =
        Socket::new(Domain::IPV4, Type::STREAM, None).map_err(RedirectionError::Addresses)?;
    let netns = NetnsCookie::of(&socket).map_err(RedirectionError::Addresses)?;
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

/// Fails if another backend, or Istio's agent, has rules in the namespace.
fn captured_by_others() -> Result<(), RedirectionError> {
    let present = RedirectionBackend::backends_in_use()?;
    let others = present.into_iter().map(RedirectionBackend::kind);
    let guards = only_guards()?;
    let mut others = others.filter(|kind| *kind != Backend::Nftables || !guards);
    if let Some(backend) = others.next() {
        return Err(RedirectionError::CapturedBy(backend.name()));
    }
    if !foreign::find()?.is_absent() {
        return Err(RedirectionError::CapturedBy("Istio's agent"));
    }
    Ok(())
}

/// Whether Ambit's table, if there is one, has only guards: those of this backend.
fn only_guards() -> Result<bool, RedirectionError> {
    let guards = [
        ChainKind::GuardInput,
        ChainKind::GuardForward,
        ChainKind::GuardOutput,
    ]
    .map(chain_name);
    let table = Nft::open()?.read(POD_TABLE)?;
    Ok(table.is_none_or(|table| table.chains.keys().all(|name| guards.contains(&&**name))))
}
