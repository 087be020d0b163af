//! Index of workloads by uid, by address and by local identity.
//!
//! Records live in numbered slots; the indices hold slot numbers only and hash through the records.

use std::{hash::BuildHasher, net::IpAddr};

use ambit_model::{ArcStr, NamespacedHostname, NetworkMode, Protocol};
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use smallvec::SmallVec;

use crate::WorkloadRef;

/// Number of the slot that holds a workload's record; it does not change while the table has a workload with this uid.
pub(crate) type Slot = u32;

#[derive(Debug, Default)]
pub(crate) struct Workloads {
    slots: Vec<Option<WorkloadRef>>,
    free_slots: Vec<Slot>,
    by_uid: HashTable<Slot>,
    by_ip: HashTable<IpEntry>,
    /// Workloads that list an address without owning it, by address: WorkloadEntries for pods, or for servers outside
    /// of the mesh.
    non_owners_by_ip: HashMap<IpAddr, SmallVec<[Slot; 2]>>,
    by_hostname: HashMap<NamespacedHostname, SmallVec<[Slot; 2]>>,
    by_local_account: HashMap<(ArcStr, ArcStr), Vec<Slot>>,
    hasher: DefaultHashBuilder,
}

/// Key of the address index: the `nth` address of the record in `slot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IpEntry {
    slot: Slot,
    address_index: u16,
}

impl Workloads {
    /// Inserts a record; returns its slot and the record that it replaces. A record equal to the previous one changes
    /// nothing.
    pub(crate) fn insert(
        &mut self,
        record: WorkloadRef,
        local_node: &str,
    ) -> (Slot, Option<WorkloadRef>) {
        let found = self.slot_of(record.uid());
        if let Some(slot) = found {
            let before = self.get(slot).cloned();
            if before.as_ref() == Some(&record) {
                return (slot, before);
            }
            if let Some(before) = &before {
                self.remove_from_indices(slot, before);
            }
            self.put_record(slot, record, local_node);
            return (slot, before);
        }
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(None);
            // Memory limits the number of slots long before u32: a record takes 64 bytes.
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let hash = self.hasher.hash_one(record.uid().as_str());
        self.put_record(slot, record, local_node);
        let Self {
            by_uid,
            hasher,
            slots,
            ..
        } = self;
        by_uid.insert_unique(hash, slot, |slot| uid_hash(hasher, slots, *slot));
        (slot, None)
    }

    fn put_record(&mut self, slot: Slot, record: WorkloadRef, local_node: &str) {
        if let Some(entry) = self.slots.get_mut(slot as usize) {
            *entry = Some(record.clone());
        }
        self.index_ips(slot, &record);
        let hostname = &record.template().hostname;
        if !hostname.is_empty() {
            let name = NamespacedHostname::new(record.namespace().clone(), hostname.clone());
            self.by_hostname.entry(name).or_default().push(slot);
        }
        if local_node.is_empty() || *record.node() == local_node {
            let key = (record.namespace().clone(), record.service_account().clone());
            self.by_local_account.entry(key).or_default().push(slot);
        }
    }

    fn index_ips(&mut self, slot: Slot, record: &WorkloadRef) {
        if record.network_mode() == NetworkMode::HostNetwork {
            let ips = record.ips().iter().filter(|_| !record.is_pod());
            for ip in ips {
                self.non_owners_by_ip.entry(*ip).or_default().push(slot);
            }
            return;
        }
        for (nth, ip) in record.ips().iter().enumerate() {
            // A workload with more addresses than this is an error of the control plane.
            let Ok(nth) = u16::try_from(nth) else { break };
            let hash = self.hasher.hash_one((record.network().as_str(), ip));
            let Self {
                by_ip,
                hasher,
                slots,
                ..
            } = self;
            by_ip.insert_unique(
                hash,
                IpEntry {
                    slot,
                    address_index: nth,
                },
                |entry| ip_hash(hasher, slots, *entry),
            );
        }
    }

    /// Removes the record with a uid, and returns it with its slot.
    pub(crate) fn remove(&mut self, uid: &str) -> Option<(Slot, WorkloadRef)> {
        let hash = self.hasher.hash_one(uid);
        let slots = &self.slots;
        let entry = self
            .by_uid
            .find_entry(hash, |slot| {
                workload_at(slots, *slot).is_some_and(|w| w.uid() == uid)
            })
            .ok()?;
        let (slot, _) = entry.remove();
        let record = self.get(slot).cloned()?;
        self.remove_from_indices(slot, &record);
        if let Some(entry) = self.slots.get_mut(slot as usize) {
            *entry = None;
        }
        self.free_slots.push(slot);
        self.shrink();
        Some((slot, record))
    }

    /// Removes a record from every index except that of uids, while it is still in its slot.
    fn remove_from_indices(&mut self, slot: Slot, record: &WorkloadRef) {
        if record.network_mode() != NetworkMode::HostNetwork {
            for (nth, ip) in record.ips().iter().enumerate() {
                let hash = self.hasher.hash_one((record.network().as_str(), ip));
                let is_it =
                    |entry: &IpEntry| entry.slot == slot && usize::from(entry.address_index) == nth;
                if let Ok(entry) = self.by_ip.find_entry(hash, is_it) {
                    entry.remove();
                }
            }
        }
        for ip in record.ips() {
            if let Some(slots) = self.non_owners_by_ip.get_mut(ip) {
                slots.retain(|known| *known != slot);
                if slots.is_empty() {
                    self.non_owners_by_ip.remove(ip);
                }
            }
        }
        let hostname = &record.template().hostname;
        if !hostname.is_empty() {
            let name = NamespacedHostname::new(record.namespace().clone(), hostname.clone());
            if let Some(slots) = self.by_hostname.get_mut(&name) {
                slots.retain(|known| *known != slot);
                if slots.is_empty() {
                    self.by_hostname.remove(&name);
                }
            }
        }
        let key = (record.namespace().clone(), record.service_account().clone());
        if let Some(slots) = self.by_local_account.get_mut(&key) {
            slots.retain(|known| *known != slot);
            if slots.is_empty() {
                self.by_local_account.remove(&key);
            }
        }
    }

    /// Frees all memory once the last workload is removed.
    fn shrink(&mut self) {
        if self.by_uid.is_empty() {
            *self = Self {
                hasher: self.hasher.clone(),
                ..Self::default()
            };
        }
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&WorkloadRef> {
        workload_at(&self.slots, slot)
    }

    fn slot_of(&self, uid: &str) -> Option<Slot> {
        let hash = self.hasher.hash_one(uid);
        self.by_uid
            .find(hash, |slot| {
                self.get(*slot).is_some_and(|record| record.uid() == uid)
            })
            .copied()
    }

    pub(crate) fn by_uid(&self, uid: &str) -> Option<&WorkloadRef> {
        self.get(self.slot_of(uid)?)
    }

    /// Returns the workload at an address. Pods take precedence over WorkloadEntries, then workloads that support
    /// HBONE, then the latest.
    pub(crate) fn by_ip(&self, network: &str, ip: IpAddr) -> Option<&WorkloadRef> {
        let hash = self.hasher.hash_one((network, &ip));
        self.by_ip
            .iter_hash(hash)
            .filter_map(|entry| Some((self.get(entry.slot)?, entry)))
            .filter(|(record, entry)| {
                record.network() == network
                    && record.ips().get(usize::from(entry.address_index)) == Some(&ip)
            })
            .max_by_key(|(record, entry)| {
                (
                    record.is_pod(),
                    record.protocol() == Protocol::Hbone,
                    entry.slot,
                )
            })
            .map(|(record, _)| record)
    }

    /// Returns all workloads that have an address in their records, whether they own it or not.
    pub(crate) fn all_by_ip<'a>(
        &'a self,
        network: &'a str,
        ip: IpAddr,
    ) -> impl Iterator<Item = &'a WorkloadRef> {
        let hash = self.hasher.hash_one((network, &ip));
        let own = self.by_ip.iter_hash(hash).map(|entry| entry.slot);
        let non_owners_by_ip = self
            .non_owners_by_ip
            .get(&ip)
            .into_iter()
            .flatten()
            .copied();
        let records = own
            .chain(non_owners_by_ip)
            .filter_map(move |slot| self.get(slot));
        records.filter(move |record| record.network() == network && record.ips().contains(&ip))
    }

    /// Returns the workload that has this host name instead of addresses.
    pub(crate) fn by_hostname(&self, name: &NamespacedHostname) -> Option<&WorkloadRef> {
        self.by_hostname
            .get(name)?
            .iter()
            .find_map(|slot| self.get(*slot))
    }

    pub(crate) fn local_by_account(
        &self,
        namespace: &str,
        service_account: &str,
    ) -> impl Iterator<Item = &WorkloadRef> {
        let slots = self
            .by_local_account
            .get(&AccountKey(namespace, service_account));
        slots
            .into_iter()
            .flatten()
            .filter_map(|slot| self.get(*slot))
    }

    pub(crate) fn all_local(&self) -> impl Iterator<Item = &WorkloadRef> {
        self.by_local_account
            .values()
            .flatten()
            .filter_map(|slot| self.get(*slot))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &WorkloadRef> {
        self.slots.iter().flatten()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_uid.len()
    }
}

/// Borrowed key of the `local` index: namespace and service account.
#[derive(Hash)]
struct AccountKey<'a>(&'a str, &'a str);

impl hashbrown::Equivalent<(ArcStr, ArcStr)> for AccountKey<'_> {
    fn equivalent(&self, key: &(ArcStr, ArcStr)) -> bool {
        key.0 == self.0 && key.1 == self.1
    }
}

fn workload_at(slots: &[Option<WorkloadRef>], slot: Slot) -> Option<&WorkloadRef> {
    slots.get(slot as usize)?.as_ref()
}

fn uid_hash(hasher: &DefaultHashBuilder, slots: &[Option<WorkloadRef>], slot: Slot) -> u64 {
    workload_at(slots, slot).map_or(0, |record| hasher.hash_one(record.uid().as_str()))
}

fn ip_hash(hasher: &DefaultHashBuilder, slots: &[Option<WorkloadRef>], entry: IpEntry) -> u64 {
    workload_at(slots, entry.slot)
        .and_then(|record| {
            Some((
                record.network(),
                record.ips().get(usize::from(entry.address_index))?,
            ))
        })
        .map_or(0, |(network, ip)| hasher.hash_one((network.as_str(), ip)))
}
