//! Addresses of pods and Services, and the ServiceEntries and WorkloadEntries that name the same addresses.
//!
//! Pods and Services own the addresses that Kubernetes assigned to them. Every tenant may write entries: an entry with
//! an address of another namespace would attract traffic of the whole mesh that is meant for the owner.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ambit_k8s_api::ObjectKey;
use ipnet::IpNet;

/// Owners of addresses (pods and Services), and the entries that name addresses.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    pub(crate) owners: BTreeMap<IpAddr, BTreeSet<ObjectKey>>,
    /// ServiceEntries and WorkloadEntries by the single addresses that they name.
    entries_by_address: BTreeMap<IpAddr, BTreeSet<ObjectKey>>,
    /// Prefixes that each ServiceEntry names; few entries name any.
    prefixes_by_entry: BTreeMap<ObjectKey, Vec<IpNet>>,
}

impl Addresses {
    /// Updates the addresses that a pod or Service owns. Returns the entries that name one of its old or new addresses.
    pub(crate) fn update_owned_addresses(
        &mut self,
        key: &ObjectKey,
        old: &[IpAddr],
        new: &[IpAddr],
    ) -> BTreeSet<ObjectKey> {
        if old == new {
            return BTreeSet::new();
        }
        for ip in old {
            remove(&mut self.owners, ip, key);
        }
        for ip in new {
            self.owners.entry(*ip).or_default().insert(key.clone());
        }
        let changed = || old.iter().chain(new);
        let exact = changed()
            .filter_map(|ip| self.entries_by_address.get(ip))
            .flatten();
        let prefixes = self.prefixes_by_entry.iter();
        let wide = prefixes
            .filter(|(_, nets)| changed().any(|ip| nets.iter().any(|net| net.contains(ip))))
            .map(|(entry, _)| entry);
        exact.chain(wide).cloned().collect()
    }

    /// Whether a pod or Service owns an address.
    pub(crate) fn is_owned_by(&self, ip: &IpAddr, key: &ObjectKey) -> bool {
        let owners = self.owners.get(ip);
        owners.is_some_and(|owners| owners.contains(key))
    }

    /// Updates the addresses and prefixes that an entry names.
    pub(crate) fn update_named_addresses(&mut self, key: &ObjectKey, old: &[IpNet], new: &[IpNet]) {
        let is_one = |net: &&IpNet| net.prefix_len() == net.max_prefix_len();
        for net in old.iter().filter(is_one) {
            remove(&mut self.entries_by_address, &net.addr(), key);
        }
        for net in new.iter().filter(is_one) {
            self.entries_by_address
                .entry(net.addr())
                .or_default()
                .insert(key.clone());
        }
        let wide: Vec<_> = new.iter().filter(|net| !is_one(net)).copied().collect();
        if wide.is_empty() {
            self.prefixes_by_entry.remove(key);
        } else {
            self.prefixes_by_entry.insert(key.clone(), wide);
        }
    }

    /// Returns the Services and pods that own an address, also in namespaces that `discoverySelectors` exclude.
    pub(crate) fn owners(&self, ip: &IpAddr) -> impl Iterator<Item = &ObjectKey> {
        self.owners.get(ip).into_iter().flatten()
    }

    pub(crate) fn owners_within(&self, net: &IpNet) -> impl Iterator<Item = &ObjectKey> {
        let inside = self.owners.range(net.network()..=net.broadcast());
        inside.flat_map(|(_, owners)| owners)
    }
}

fn remove(map: &mut BTreeMap<IpAddr, BTreeSet<ObjectKey>>, ip: &IpAddr, key: &ObjectKey) {
    if let Some(keys) = map.get_mut(ip) {
        keys.remove(key);
        if keys.is_empty() {
            map.remove(ip);
        }
    }
}
