//! The rules in the node's namespace: kubelet's probes of enrolled pods get a recognisable source, and
//! nothing that arrives from elsewhere has it.
//!
//! The kernel holds the list of enrolled pods, in a set (nftables) or in rules (iptables), each address
//! with its pod's UID.

use std::{collections::BTreeMap, net::IpAddr};

use ambit_netplan::{
    Backend, Family, HostMember, HostSpec,
    iptables::{self, State},
    nft::{HOST_TABLE, Table, bridge_table, host_table, set_name},
};
use ambit_rt::ErrorChain;

use super::{
    Applied, Drift, RedirectionError,
    backend::{RedirectionBackend, change_table, change_table_of},
    family_enabled, first_working, inside,
};
use crate::{
    iptables::{Iptables, lock},
    netns::Netns,
    nft::{Nft, TableFamily},
};

/// Address to pod UID.
type Members = BTreeMap<IpAddr, String>;

/// Creates the rules and their sets; existing members stay.
///
/// # Errors
/// When the node's namespace cannot be entered or changed.
pub fn ensure(node: &Netns, spec: &HostSpec) -> Result<Applied, RedirectionError> {
    edit(node, spec, |_| {}).map(Drift::into_applied)
}

/// Changes the rules for frames that pass between ports of one bridge. Does nothing on a kernel that
/// does not support such rules.
fn change_bridges(desired: impl Fn() -> Option<Table>) -> Result<Drift, RedirectionError> {
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

/// Makes the set's members exactly these, in one step.
///
/// # Errors
/// When the node's namespace cannot be entered or changed.
pub fn set_members(
    node: &Netns,
    spec: &HostSpec,
    members: &[HostMember],
) -> Result<(), RedirectionError> {
    let wanted: Members = members
        .iter()
        .map(|m| (m.ip.to_canonical(), m.uid.clone()))
        .collect();
    edit(node, spec, |current| current.clone_from(&wanted)).map(|_| ())
}

/// Adds a pod's addresses, taking them over from a pod that had them before.
///
/// # Errors
/// When the node's namespace cannot be entered or changed.
pub fn upsert(
    node: &Netns,
    spec: &HostSpec,
    uid: &str,
    ips: &[IpAddr],
) -> Result<(), RedirectionError> {
    edit(node, spec, |current| {
        current.extend(ips.iter().map(|ip| (ip.to_canonical(), uid.to_owned())));
    })
    .map(|_| ())
}

/// Removes all addresses that belong to this pod; those that meanwhile belong to another stay.
///
/// # Errors
/// When the node's namespace cannot be entered or changed.
pub fn remove_pod(node: &Netns, spec: &HostSpec, uid: &str) -> Result<(), RedirectionError> {
    edit(node, spec, |current| {
        current.retain(|_, owner| owner != uid)
    })
    .map(|_| ())
}

/// The members as the kernel has them.
///
/// # Errors
/// When the node's namespace cannot be entered or read.
pub fn members(node: &Netns, spec: &HostSpec) -> Result<Vec<HostMember>, RedirectionError> {
    inside(node, || {
        let (_, members) = first_working(spec.backend, |backend| match backend.kind() {
            Backend::Nftables => Ok(Nft::open()?
                .read(HOST_TABLE)?
                .map_or_else(Members::new, |t| members_of(&t))),
            backend => {
                let mut members = Members::new();
                for (_, state) in read(backend, spec)? {
                    let found = iptables::host_members(&state);
                    members.extend(found.into_iter().map(|m| (m.ip, m.uid)));
                }
                Ok(members)
            }
        })?;
        Ok(list(&members))
    })
}

/// Removes the rules and the sets.
///
/// # Errors
/// When the node's namespace cannot be entered or changed.
pub fn remove(node: &Netns) -> Result<(), RedirectionError> {
    inside(node, || {
        match change_table(HOST_TABLE, |_| None) {
            Err(error) if !error.is_unsupported() => return Err(error),
            _ => {}
        }
        change_bridges(|| None)?;
        for backend in RedirectionBackend::present()? {
            let _lock = lock()?;
            let spec = HostSpec::default();
            for (family, current) in read(backend.kind(), &spec)? {
                restore(backend.kind(), family, &current, &State::default())?;
            }
        }
        Ok(())
    })
}

/// Changes the members, and repairs all else that is not as desired.
fn edit(
    node: &Netns,
    spec: &HostSpec,
    change: impl Fn(&mut Members),
) -> Result<Drift, RedirectionError> {
    inside(node, || {
        let attempt = |backend: RedirectionBackend| match backend.kind() {
            Backend::Nftables => change_table(HOST_TABLE, |current| {
                let mut members = current.map_or_else(Members::new, members_of);
                change(&mut members);
                Some(table_with(spec, members))
            }),
            backend => edit_iptables(backend, spec, &change),
        };
        let (_, mut drift) = first_working(spec.backend, attempt)?;
        let bridges = change_bridges(|| Some(bridge_table(spec)))?;
        drift.nothing_found &= bridges.nothing_found;
        let items = bridges.items.into_iter();
        drift
            .items
            .extend(items.map(|item| format!("bridges: {item}")));
        Ok(drift)
    })
}

fn edit_iptables(
    backend: Backend,
    spec: &HostSpec,
    change: impl Fn(&mut Members),
) -> Result<Drift, RedirectionError> {
    let _lock = lock()?;
    let mut drift = Drift::of_nothing();
    for (family, current) in read(backend, spec)? {
        let found = iptables::host_members(&current);
        let mut members: Members = found.into_iter().map(|m| (m.ip, m.uid)).collect();
        change(&mut members);
        let desired = iptables::desired_host(spec, &list(&members), family);
        drift.nothing_found &= current.is_empty();
        drift
            .items
            .extend(iptables::differences(&current, &desired));
        restore(backend, family, &current, &desired)?;
    }
    Ok(drift)
}

fn read(backend: Backend, spec: &HostSpec) -> Result<Vec<(Family, State)>, RedirectionError> {
    let wanted = |family: &Family| {
        family_enabled(*family)
            && match family {
                Family::V4 => spec.ipv4,
                Family::V6 => spec.ipv6,
            }
    };
    let mut out = Vec::new();
    for family in [Family::V4, Family::V6].into_iter().filter(wanted) {
        if let Some(program) = Iptables::new(backend, family) {
            out.push((family, program.read()?));
        }
    }
    Ok(out)
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

fn members_of(table: &Table) -> Members {
    table
        .sets
        .values()
        .flat_map(|set| set.members.clone())
        .collect()
}

fn list(members: &Members) -> Vec<HostMember> {
    members
        .iter()
        .map(|(ip, uid)| HostMember {
            ip: *ip,
            uid: uid.clone(),
        })
        .collect()
}

/// The desired table; members of a family the node does not handle are left out.
fn table_with(spec: &HostSpec, members: Members) -> Table {
    let mut table = host_table(spec);
    for (ip, uid) in members {
        let family = if ip.is_ipv4() { Family::V4 } else { Family::V6 };
        if let Some(set) = table.sets.get_mut(set_name(family)) {
            set.members.insert(ip, uid);
        }
    }
    table
}
