//! Services by name, virtual address, prefix and host name, each with its endpoints.
//!
//! An endpoint is the table slot of a workload whose record lists the service. An endpoint that arrives before its
//! service is staged: its entry has no service yet. Ready and unready endpoints are separate, so that choosing one
//! needs no health check.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    hash::{Hash, Hasher},
    net::IpAddr,
    sync::Arc,
};

use ambit_model::{
    ArcStr, CidrVip, HealthPolicy, NamespacedHostname, NetworkAddress, Service, Visibility,
    WorkloadStatus,
};
use hashbrown::HashMap;
use ipnet::IpNet;
use smallvec::SmallVec;

use crate::{WorkloadRef, workloads::Slot};

/// Services with the same key, such as a host name: one for each namespace, in order of arrival.
type ServiceNames = SmallVec<[NamespacedHostname; 1]>;

#[derive(Debug, Default)]
pub(crate) struct Services {
    entries: HashMap<NamespacedHostname, ServiceEntry>,
    by_vip: HashMap<NetworkAddress, ServiceNames>,
    by_cidr: HashMap<CidrVip, ServiceNames>,
    /// Number of services' prefixes by family (is IPv6) and length, so that lookups try only existing lengths.
    cidr_lengths: BTreeMap<(bool, u8), usize>,
    by_hostname: HashMap<ArcStr, ServiceNames>,
    /// Number of services with a wildcard hostname.
    wildcard_hostnames: usize,
    count: usize,
    /// Counter of changes of services and endpoints, from which revisions are taken.
    change_count: u64,
}

/// Service, if it has been received, and its endpoints.
#[derive(Debug, Default)]
pub(crate) struct ServiceEntry {
    service: Option<Arc<Service>>,
    endpoints: Endpoints,
}

/// Endpoints of a service, sorted by their slot in the table of workloads.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    pub(crate) ready: Vec<Slot>,
    pub(crate) unready: Vec<Slot>,
    /// Upper bound of the endpoints' capacities. It may be too high after removals, which only costs a few more draws.
    pub(crate) max_capacity: u32,
    /// Value of the change counter at the last change of the endpoints or their service.
    pub(crate) revision: u64,
}

impl Endpoints {
    /// Iterates over the endpoints that a health policy allows.
    pub(crate) fn usable(&self, policy: HealthPolicy) -> impl Iterator<Item = Slot> {
        let unready = match policy {
            HealthPolicy::OnlyHealthy => [].as_slice(),
            HealthPolicy::AllowAll => self.unready.as_slice(),
        };
        self.ready.iter().chain(unready).copied()
    }

    fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.unready.is_empty()
    }
}

impl Services {
    // === changes ===

    pub(crate) fn insert(&mut self, service: Arc<Service>) {
        let name = service.namespaced_hostname();
        let before = self
            .entries
            .get(&name)
            .and_then(|entry| entry.service.clone());
        if before.as_ref() == Some(&service) {
            return;
        }
        match before {
            Some(before) => self.remove_from_indices(&name, &before),
            None => self.count += 1,
        }
        self.add_to_indices(&name, &service);
        self.change_count += 1;
        let entry = self.entries.entry(name).or_default();
        entry.service = Some(service);
        entry.endpoints.revision = self.change_count;
    }

    pub(crate) fn remove(&mut self, name: &NamespacedHostname) -> bool {
        let Some(entry) = self.entries.get_mut(name) else {
            return false;
        };
        let Some(service) = entry.service.take() else {
            return false;
        };
        if entry.endpoints.is_empty() {
            self.entries.remove(name);
        }
        self.remove_from_indices(name, &service);
        self.count -= 1;
        true
    }

    fn add_to_indices(&mut self, name: &NamespacedHostname, service: &Service) {
        for vip in &service.vips {
            add_name(self.by_vip.entry(vip.clone()).or_default(), name);
        }
        for vip in &service.cidr_vips {
            let vip = CidrVip {
                network: vip.network.clone(),
                cidr: vip.cidr.trunc(),
            };
            let length = (vip.cidr.addr().is_ipv6(), vip.cidr.prefix_len());
            let names = self.by_cidr.entry(vip).or_default();
            if names.is_empty() {
                *self.cidr_lengths.entry(length).or_default() += 1;
            }
            add_name(names, name);
        }
        add_name(
            self.by_hostname
                .entry(service.hostname.clone())
                .or_default(),
            name,
        );
        self.wildcard_hostnames += usize::from(is_wildcard(service));
    }

    fn remove_from_indices(&mut self, name: &NamespacedHostname, service: &Service) {
        for vip in &service.vips {
            drop_name(&mut self.by_vip, vip, name);
        }
        for vip in &service.cidr_vips {
            let vip = CidrVip {
                network: vip.network.clone(),
                cidr: vip.cidr.trunc(),
            };
            if drop_name(&mut self.by_cidr, &vip, name) {
                let length = (vip.cidr.addr().is_ipv6(), vip.cidr.prefix_len());
                if let Some(count) = self.cidr_lengths.get_mut(&length) {
                    *count -= 1;
                    if *count == 0 {
                        self.cidr_lengths.remove(&length);
                    }
                }
            }
        }
        drop_name(&mut self.by_hostname, &service.hostname, name);
        self.wildcard_hostnames -= usize::from(is_wildcard(service));
    }

    pub(crate) fn insert_endpoint(&mut self, slot: Slot, workload: &WorkloadRef) {
        self.change_count += 1;
        for name in workload.services() {
            // The key is shared with the workloads, not copied.
            let entry = self.entries.entry_ref(name).or_default();
            let list = match workload.status() {
                WorkloadStatus::Healthy => &mut entry.endpoints.ready,
                WorkloadStatus::Unhealthy => &mut entry.endpoints.unready,
            };
            if let Err(index) = list.binary_search(&slot) {
                list.insert(index, slot);
            }
            let capacity = workload.template().capacity;
            entry.endpoints.max_capacity = entry.endpoints.max_capacity.max(capacity);
            entry.endpoints.revision = self.change_count;
        }
    }

    pub(crate) fn remove_endpoint(&mut self, slot: Slot, workload: &WorkloadRef) {
        self.change_count += 1;
        for name in workload.services() {
            let Some(entry) = self.entries.get_mut(name) else {
                continue;
            };
            entry.endpoints.revision = self.change_count;
            for list in [&mut entry.endpoints.ready, &mut entry.endpoints.unready] {
                if let Ok(index) = list.binary_search(&slot) {
                    list.remove(index);
                }
                if list.capacity() > 64 && list.len() < list.capacity() / 4 {
                    list.shrink_to(list.len() * 2);
                }
            }
            if entry.endpoints.is_empty() {
                entry.endpoints = Endpoints {
                    revision: self.change_count,
                    ..Endpoints::default()
                };
                if entry.service.is_none() {
                    self.entries.remove(name);
                }
            }
        }
    }

    // === look-ups ===

    pub(crate) fn by_name(&self, name: &NamespacedHostname) -> Option<(&Arc<Service>, &Endpoints)> {
        let entry = self.entries.get(name)?;
        Some((entry.service.as_ref()?, &entry.endpoints))
    }

    /// Returns the service with a virtual address that is visible to the client's namespace; without a client
    /// namespace, visibility is ignored.
    pub(crate) fn by_vip(
        &self,
        network: &str,
        ip: IpAddr,
        client: Option<&str>,
    ) -> Option<(&Arc<Service>, &Endpoints)> {
        let names = self.by_vip.get(&AddressKey { network, ip })?;
        self.visible_services(names, client)
            .max_by_key(|(order, service, _)| {
                (is_in_namespace(service, client), service.canonical, *order)
            })
            .map(|(_, service, endpoints)| (service, endpoints))
    }

    /// Returns the service whose prefix contains an address and that is visible to the client's namespace; without a
    /// client namespace, visibility is ignored.
    pub(crate) fn by_prefix(
        &self,
        network: &str,
        ip: IpAddr,
        client: Option<&str>,
    ) -> Option<(&Arc<Service>, &Endpoints)> {
        self.prefixes(network, ip)
            .flat_map(|(length, names)| {
                self.visible_services(names, client)
                    .map(move |found| (length, found))
            })
            .max_by_key(|(length, (order, service, _))| {
                (
                    is_in_namespace(service, client),
                    *length,
                    service.canonical,
                    *order,
                )
            })
            .map(|(_, (_, service, endpoints))| (service, endpoints))
    }

    fn prefixes(&self, network: &str, ip: IpAddr) -> impl Iterator<Item = (u8, &ServiceNames)> {
        self.cidr_lengths
            .keys()
            .filter(move |(is_v6, _)| *is_v6 == ip.is_ipv6())
            .filter_map(move |(_, length)| {
                let cidr = IpNet::new(ip, *length).ok()?.trunc();
                Some((*length, self.by_cidr.get(&CidrKey { network, cidr })?))
            })
    }

    /// Returns the service with a host name, among the services for which `eligible` is true.
    pub(crate) fn by_hostname(
        &self,
        hostname: &str,
        client: &str,
        preferred: Option<&str>,
        eligible: impl Fn(&Service) -> bool,
    ) -> Option<&Arc<Service>> {
        let names = self.by_hostname.get(hostname)?;
        self.visible_services(names, Some(client))
            .filter(|(_, service, _)| eligible(service))
            .max_by_key(|(order, service, _)| {
                let is_preferred = Some(service.namespace.as_str()) == preferred;
                (
                    is_in_namespace(service, Some(client)),
                    service.canonical,
                    is_preferred,
                    *order,
                )
            })
            .map(|(_, service, _)| service)
    }

    /// Iterates over the services that are visible to the client, each with its precedence. Among services of equal
    /// precedence, the first wins.
    fn visible_services<'a, 'c>(
        &'a self,
        names: &'a ServiceNames,
        client: Option<&'c str>,
    ) -> impl Iterator<Item = (Reverse<usize>, &'a Arc<Service>, &'a Endpoints)> + use<'a, 'c> {
        names.iter().enumerate().filter_map(move |(order, name)| {
            let (service, endpoints) = self.by_name(name)?;
            let visible = service.visibility == Visibility::Public
                || client.is_none_or(|client| service.namespace == client);
            visible.then_some((Reverse(order), service, endpoints))
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.entries
            .values()
            .filter_map(|entry| entry.service.as_ref())
    }

    pub(crate) fn staged_endpoints(
        &self,
    ) -> impl Iterator<Item = (&NamespacedHostname, &Endpoints)> {
        self.entries
            .iter()
            .filter(|(_, entry)| entry.service.is_none())
            .map(|(name, entry)| (name, &entry.endpoints))
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn has_wildcards(&self) -> bool {
        self.wildcard_hostnames > 0
    }

    /// Whether no index has an entry without a service or endpoint.
    #[cfg(test)]
    pub(crate) fn has_consistent_indices(&self) -> bool {
        self.entries.is_empty()
            && self.by_vip.is_empty()
            && self.by_cidr.is_empty()
            && self.cidr_lengths.is_empty()
            && self.by_hostname.is_empty()
            && self.wildcard_hostnames == 0
    }
}

fn is_wildcard(service: &Service) -> bool {
    service.hostname.starts_with("*.")
}

fn is_in_namespace(service: &Service, client: Option<&str>) -> bool {
    client.is_some_and(|client| service.namespace == client)
}

fn add_name(names: &mut ServiceNames, name: &NamespacedHostname) {
    if !names.contains(name) {
        names.push(name.clone());
    }
}

/// Removes a service's name from an index entry; returns true if it was the entry's last name.
fn drop_name<K: Hash + Eq>(
    index: &mut HashMap<K, ServiceNames>,
    key: &K,
    name: &NamespacedHostname,
) -> bool {
    let Some(names) = index.get_mut(key) else {
        return false;
    };
    names.retain(|known| known != name);
    let is_last = names.is_empty();
    if is_last {
        index.remove(key);
    }
    is_last
}

/// Borrowed [`NetworkAddress`] with the same hash, for lookups without allocating.
#[derive(Hash)]
struct AddressKey<'a> {
    network: &'a str,
    ip: IpAddr,
}

impl hashbrown::Equivalent<NetworkAddress> for AddressKey<'_> {
    fn equivalent(&self, key: &NetworkAddress) -> bool {
        key.address == self.ip && key.network == self.network
    }
}

/// Borrowed [`CidrVip`] with the same hash, for lookups without allocating.
struct CidrKey<'a> {
    network: &'a str,
    cidr: IpNet,
}

impl Hash for CidrKey<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.network.hash(state);
        self.cidr.hash(state);
    }
}

impl hashbrown::Equivalent<CidrVip> for CidrKey<'_> {
    fn equivalent(&self, key: &CidrVip) -> bool {
        key.cidr == self.cidr && key.network == self.network
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn borrowed_keys_hash_like_owned_ones() {
        let hasher = hashbrown::DefaultHashBuilder::default();
        let owned = NetworkAddress::new("net", "10.0.0.1".parse().unwrap());
        let borrowed = AddressKey {
            network: "net",
            ip: owned.address,
        };
        assert_eq!(hasher.hash_one(&owned), hasher.hash_one(&borrowed));
        let cidr: IpNet = "fd00::/64".parse().unwrap();
        let owned = CidrVip {
            network: "net".into(),
            cidr,
        };
        assert_eq!(
            hasher.hash_one(&owned),
            hasher.hash_one(CidrKey {
                network: "net",
                cidr
            })
        );
    }
}
