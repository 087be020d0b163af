//! Rules in the node's namespace that give kubelet's probes of enrolled pods a source address which no packet from
//! elsewhere has.
//!
//! The kernel holds the addresses and probe ports of enrolled pods, as members of sets (nftables) or as rules
//! (iptables), each with its pod's UID. Members without a port, written by earlier agents, stay until their pod's
//! members are replaced, so that an upgrade interrupts no probe.

use std::{collections::BTreeMap, net::IpAddr};

use ambit_netplan::{
    Backend, ChainKind, Family, HostMember, HostSpec, ProbePorts,
    iptables::{self, State},
    nft::{HOST_TABLE, Table, bridge_table, chain_name, host_members, host_table},
};
use ambit_rt::ErrorChain;

use super::{
    backend::{RedirectionBackend, change_table, change_table_of},
    drift::{Applied, Drift},
    error::RedirectionError,
    first_working, inside,
    settings::family_enabled,
};
use crate::{
    iptables::{Iptables, lock},
    netns::Netns,
    nft::{Nft, TableFamily},
};

/// Pod UIDs by address and probe port (`None`: every port).
type ExemptMembers = BTreeMap<(IpAddr, Option<u16>), String>;

/// Creates the node's rules that exempt kubelet's probes, and their sets; existing members stay.
///
/// # Errors
/// When the node's namespace cannot be entered or changed.
pub fn ensure_rules(node: &Netns, spec: &HostSpec) -> Result<Applied, RedirectionError> {
    edit_members(node, spec, |_| {}).map(|(_, drift)| drift.into_applied())
}

/// Changes the node's rules for frames that a bridge forwards between its ports. Does nothing if the kernel does not
/// support the family bridge.
fn change_bridge_table(desired: impl Fn() -> Option<Table>) -> Result<Drift, RedirectionError> {
    let changed = Nft::open_family(TableFamily::Bridge)
        .map_err(RedirectionError::from)
        .and_then(|mut nft| change_table_of(&mut nft, HOST_TABLE, |_| desired()));
    match changed {
        Err(error) if error.is_unsupported() => {
            tracing::debug!(error = %ErrorChain(&error), "no rules for frames between a bridge's ports");
            Ok(Drift::of_nothing())
        }
        other => other,
    }
}

/// Replaces the exempt addresses and ports (members) of all pods in one step, and removes rules of other backends.
///
/// # Errors
/// When the node's namespace cannot be entered or changed.
pub fn set_members(
    node: &Netns,
    spec: &HostSpec,
    members: &[HostMember],
) -> Result<(), RedirectionError> {
    let desired: ExemptMembers = members
        .iter()
        .map(|m| ((m.ip.to_canonical(), m.port), m.uid.clone()))
        .collect();
    let (used, _) = edit_members(node, spec, |current| current.clone_from(&desired))?;
    // Only now: pods that those rules exempted are exempt by ours.
    inside(node, || remove_other_backends(used))
}

/// Replaces the exempt addresses and ports (members) of one pod; an address that belonged to another pod is removed
/// from that one.
///
/// # Errors
/// When the node's namespace cannot be entered or changed.
pub fn upsert_pod(
    node: &Netns,
    spec: &HostSpec,
    uid: &str,
    ips: &[IpAddr],
    ports: &ProbePorts,
) -> Result<(), RedirectionError> {
    let ips: Vec<_> = ips.iter().map(IpAddr::to_canonical).collect();
    edit_members(node, spec, |current| {
        current.retain(|(ip, _), owner| owner != uid && !ips.contains(ip));
        for ip in &ips {
            current.extend(ports.iter().map(|port| ((*ip, port), uid.to_owned())));
        }
    })
    .map(|_| ())
}

/// Removes the exempt addresses and ports (members) of one pod; an address that meanwhile belongs to another pod stays.
///
/// # Errors
/// When the node's namespace cannot be entered or changed.
pub fn remove_pod(node: &Netns, spec: &HostSpec, uid: &str) -> Result<(), RedirectionError> {
    edit_members(node, spec, |current| {
        current.retain(|_, owner| owner != uid)
    })
    .map(|_| ())
}

/// Reads the exempt addresses and ports (members) of all pods from the kernel.
///
/// # Errors
/// When the node's namespace cannot be entered or read.
pub fn members(node: &Netns, spec: &HostSpec) -> Result<Vec<HostMember>, RedirectionError> {
    inside(node, || {
        let (_, members) = first_working(spec.backend, |backend| match backend.kind() {
            Backend::Nftables => Ok(Nft::open()?
                .read(HOST_TABLE)?
                .map_or_else(ExemptMembers::new, |t| collect_members(host_members(&t)))),
            backend => {
                let mut members = ExemptMembers::new();
                for (_, state) in read(backend, spec)? {
                    members.extend(collect_members(iptables::host_members(&state)));
                }
                Ok(members)
            }
        })?;
        Ok(list_members(&members))
    })
}

/// Returns the number of connections that the node's rules have exempted since the rules were last written.
///
/// # Errors
/// When the node's namespace cannot be entered or read.
pub fn exempted_connections(node: &Netns, spec: &HostSpec) -> Result<u64, RedirectionError> {
    inside(node, || {
        let (_, connections) = first_working(spec.backend, |backend| match backend.kind() {
            Backend::Nftables => {
                let mut nft = Nft::open()?;
                Ok(nft.read_counter(HOST_TABLE, chain_name(ChainKind::NatPostrouting))?)
            }
            backend => {
                let mut connections = 0_u64;
                for program in iptables_programs(backend, spec) {
                    let counted = iptables::exempted(&program.1.save_counters()?);
                    connections = connections.saturating_add(counted);
                }
                Ok(connections)
            }
        })?;
        Ok(connections)
    })
}

/// Removes the node's rules that exempt kubelet's probes, and their sets.
///
/// # Errors
/// When the node's namespace cannot be entered or changed.
pub fn remove_rules(node: &Netns) -> Result<(), RedirectionError> {
    inside(node, || {
        remove_nftables()?;
        change_bridge_table(|| None)?;
        for backend in RedirectionBackend::backends_in_use()? {
            remove_iptables(backend.kind())?;
        }
        Ok(())
    })
}

/// Removes the node's probe rules of all backends but the one in use.
fn remove_other_backends(used: Backend) -> Result<(), RedirectionError> {
    if used != Backend::Nftables {
        remove_nftables()?;
    }
    for backend in RedirectionBackend::backends_in_use()? {
        if backend.kind() != used {
            remove_iptables(backend.kind())?;
        }
    }
    Ok(())
}

fn remove_nftables() -> Result<(), RedirectionError> {
    match change_table(HOST_TABLE, |_| None) {
        Err(error) if !error.is_unsupported() => Err(error),
        _ => Ok(()),
    }
}

fn remove_iptables(backend: Backend) -> Result<(), RedirectionError> {
    let _lock = lock()?;
    for (family, current) in read(backend, &HostSpec::default())? {
        restore(backend, family, &current, &State::default())?;
    }
    Ok(())
}

/// Applies `change` to the members (exempt addresses and ports), repairs all other differences of the node's rules, and
/// returns the backend that carries the rules.
fn edit_members(
    node: &Netns,
    spec: &HostSpec,
    change: impl Fn(&mut ExemptMembers),
) -> Result<(Backend, Drift), RedirectionError> {
    inside(node, || {
        let attempt = |backend: RedirectionBackend| match backend.kind() {
            Backend::Nftables => change_table(HOST_TABLE, |current| {
                let members = current.map(host_members).unwrap_or_default();
                let mut members = collect_members(members);
                change(&mut members);
                Some(host_table(spec, &list_members(&members)))
            }),
            backend => edit_iptables(backend, spec, &change),
        };
        let (used, mut drift) = first_working(spec.backend, attempt)?;
        let bridges = change_bridge_table(|| Some(bridge_table(spec)))?;
        drift.nothing_found &= bridges.nothing_found;
        let items = bridges.items.into_iter();
        drift
            .items
            .extend(items.map(|item| format!("bridges: {item}")));
        Ok((used.kind(), drift))
    })
}

fn edit_iptables(
    backend: Backend,
    spec: &HostSpec,
    change: impl Fn(&mut ExemptMembers),
) -> Result<Drift, RedirectionError> {
    if spec.kubelet_cgroup.is_some() {
        tracing::error!(
            "rules of iptables cannot match processes in kubelet's cgroup: no probe is exempt"
        );
    }
    let _lock = lock()?;
    let mut drift = Drift::of_nothing();
    for (family, current) in read(backend, spec)? {
        let mut members = collect_members(iptables::host_members(&current));
        change(&mut members);
        let desired = iptables::desired_host(spec, &list_members(&members), family);
        drift.nothing_found &= current.is_empty();
        drift
            .items
            .extend(iptables::differences(&current, &desired));
        restore(backend, family, &current, &desired)?;
    }
    Ok(drift)
}

fn read(backend: Backend, spec: &HostSpec) -> Result<Vec<(Family, State)>, RedirectionError> {
    iptables_programs(backend, spec)
        .map(|(family, program)| Ok((family, program.read()?)))
        .collect()
}

/// Returns the iptables programs of a backend, one for each address family in use on the node.
fn iptables_programs(
    backend: Backend,
    spec: &HostSpec,
) -> impl Iterator<Item = (Family, Iptables)> {
    let is_enabled = move |family: &Family| {
        family_enabled(*family)
            && match family {
                Family::V4 => spec.ipv4,
                Family::V6 => spec.ipv6,
            }
    };
    let families = [Family::V4, Family::V6].into_iter().filter(is_enabled);
    families.filter_map(move |family| Some((family, Iptables::new(backend, family)?)))
}

fn restore(
    backend: Backend,
    family: Family,
    current: &State,
    desired: &State,
) -> Result<(), RedirectionError> {
    match Iptables::new(backend, family) {
        Some(program) => Ok(program.restore(&iptables::restore_script(current, desired))?),
        None => Ok(()),
    }
}

fn collect_members(members: Vec<HostMember>) -> ExemptMembers {
    members
        .into_iter()
        .map(|member| ((member.ip, member.port), member.uid))
        .collect()
}

fn list_members(members: &ExemptMembers) -> Vec<HostMember> {
    members
        .iter()
        .map(|((ip, port), uid)| HostMember {
            ip: *ip,
            port: *port,
            uid: uid.clone(),
        })
        .collect()
}
