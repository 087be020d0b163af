//! Every record once, encoded, with its version and what it can be found by; and which changed when.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use ambit_derive::{AppProtocol, Delta, ServiceRecord};
use ambit_model::{ArcStr, Authorization, NetworkMode, Workload};
use ambit_wire::{security, workload};
use bytes::Bytes;
use prost::Message;
use xxhash_rust::xxh64::xxh64;

use super::batch::Batches;

/// Removed names that are remembered; a client that was away longer has to reconnect.
const MAX_REMOVED: usize = 100_000;

/// What a record is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A workload.
    Workload {
        /// Node it runs on.
        node: ArcStr,
        /// Names of the services it is an endpoint of.
        services: Vec<ArcStr>,
    },
    /// A service.
    Service,
    /// A policy.
    Policy,
}

/// One record as it is sent. Shared by all clients.
#[derive(Debug)]
pub struct Entry {
    /// Resource name.
    pub name: ArcStr,
    /// Hash of `value`, as hex.
    pub version: String,
    /// Encoded `istio.workload.Address` or `istio.security.Authorization`.
    pub value: Bytes,
    /// Further names clients may ask for it by.
    pub aliases: Vec<ArcStr>,
    /// What it is.
    pub kind: EntryKind,
}

impl Entry {
    fn new(name: ArcStr, value: Bytes, aliases: Vec<ArcStr>, kind: EntryKind) -> Self {
        let version = format!("{:x}", xxh64(&value, 0));
        Self {
            name,
            version,
            value,
            aliases,
            kind,
        }
    }

    fn workload(from: &Workload) -> Self {
        let sent: workload::Address = workload::Workload::from(from).into();
        // The addresses of a host-network pod are its node's: it is not found by them.
        let by_ip = from.network_mode == NetworkMode::Standard;
        let ips = from.workload_ips.iter().filter(|_| by_ip);
        let kind = EntryKind::Workload {
            node: from.node.clone(),
            services: from
                .services
                .keys()
                .map(|name| ArcStr::from(name.to_string()))
                .collect(),
        };
        let aliases = ips
            .map(|ip| arcstr::format!("{}/{ip}", from.network))
            .collect();
        Self::new(from.uid.clone(), sent.encode_to_vec().into(), aliases, kind)
    }

    fn service(from: &ServiceRecord) -> Self {
        let mut sent = workload::Service::from(&from.service);
        for (port, protocol) in sent.ports.iter_mut().zip(&from.app_protocols) {
            port.app_protocol = app_protocol(*protocol).into();
        }
        let sent: workload::Address = sent.into();
        let vips = from
            .service
            .vips
            .iter()
            .map(|vip| ArcStr::from(vip.to_string()));
        let cidrs = from.service.cidr_vips.iter().map(|vip| {
            arcstr::format!(
                "{}/{}/{}",
                vip.network,
                vip.cidr.network(),
                vip.cidr.prefix_len()
            )
        });
        let name = from.service.namespaced_hostname().to_string();
        Self::new(
            name.into(),
            sent.encode_to_vec().into(),
            vips.chain(cidrs).collect(),
            EntryKind::Service,
        )
    }

    fn policy(from: &Authorization) -> Self {
        let sent = security::Authorization::from(from);
        Self::new(
            from.key().to_string().into(),
            sent.encode_to_vec().into(),
            Vec::new(),
            EntryKind::Policy,
        )
    }
}

fn app_protocol(protocol: AppProtocol) -> workload::AppProtocol {
    match protocol {
        AppProtocol::Unknown => workload::AppProtocol::Unknown,
        AppProtocol::Http11 => workload::AppProtocol::Http11,
        AppProtocol::Http2 => workload::AppProtocol::Http2,
        AppProtocol::Grpc => workload::AppProtocol::Grpc,
        AppProtocol::Tls => workload::AppProtocol::Tls,
        AppProtocol::Tcp => workload::AppProtocol::Tcp,
    }
}

/// Which of the two collections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collection {
    /// Workloads and services.
    Addresses,
    /// Policies.
    Policies,
}

#[derive(Debug, Default)]
struct Records {
    entries: HashMap<ArcStr, Arc<Entry>>,
    /// Latest change of every name, removed ones included.
    log: BTreeMap<u64, ArcStr>,
    changed_at: HashMap<ArcStr, u64>,
    removed: VecDeque<(u64, ArcStr)>,
    /// Removals up to here may be forgotten.
    floor: u64,
}

/// All records. Revisions count changes of single names.
#[derive(Debug, Default)]
pub struct Store {
    revision: u64,
    addresses: Records,
    policies: Records,
    by_alias: HashMap<ArcStr, BTreeSet<ArcStr>>,
    endpoints: HashMap<ArcStr, BTreeSet<ArcStr>>,
    on_node: HashMap<ArcStr, BTreeSet<ArcStr>>,
    batches: Batches,
}

impl Store {
    /// Takes over what changed. Returns the number of names that did.
    pub fn update(&mut self, delta: &Delta) -> usize {
        let before = self.revision;
        for (uid, workload) in &delta.workloads {
            self.put_address(uid, workload.as_deref().map(Entry::workload));
        }
        for (name, service) in &delta.services {
            self.put_address(
                &name.to_string().into(),
                service.as_deref().map(Entry::service),
            );
        }
        for (key, policy) in &delta.policies {
            let entry = policy.as_deref().map(Entry::policy);
            self.policies
                .put(&mut self.revision, &key.to_string().into(), entry);
        }
        usize::try_from(self.revision - before).unwrap_or(usize::MAX)
    }

    /// What is told to many clients, made once.
    pub fn batches(&self) -> &Batches {
        &self.batches
    }

    /// The number of the latest change.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// One record.
    pub fn entry(&self, collection: Collection, name: &str) -> Option<&Arc<Entry>> {
        self.records(collection).entries.get(name)
    }

    /// All records, in no order.
    pub fn entries(&self, collection: Collection) -> impl Iterator<Item = &Arc<Entry>> {
        self.records(collection).entries.values()
    }

    /// Names that changed after a revision, oldest first; `None` if that is too long ago to tell.
    pub fn changed_since(
        &self,
        collection: Collection,
        revision: u64,
    ) -> Option<impl Iterator<Item = &ArcStr>> {
        let records = self.records(collection);
        let after = revision.saturating_add(1);
        (revision >= records.floor).then(|| records.log.range(after..).map(|(_, name)| name))
    }

    /// Names of the workloads and services that have this alias.
    pub fn by_alias(&self, alias: &str) -> impl Iterator<Item = &ArcStr> {
        self.by_alias.get(alias).into_iter().flatten()
    }

    /// Names of the workloads of a service.
    pub fn endpoints(&self, service: &str) -> impl Iterator<Item = &ArcStr> {
        self.endpoints.get(service).into_iter().flatten()
    }

    /// Names of the workloads on a node.
    pub fn on_node(&self, node: &str) -> impl Iterator<Item = &ArcStr> {
        self.on_node.get(node).into_iter().flatten()
    }

    fn records(&self, collection: Collection) -> &Records {
        match collection {
            Collection::Addresses => &self.addresses,
            Collection::Policies => &self.policies,
        }
    }

    fn put_address(&mut self, name: &ArcStr, new: Option<Entry>) {
        if let Some(old) = self.addresses.entries.get(name).cloned() {
            self.unindex(&old);
        }
        if let Some(new) = &new {
            for alias in &new.aliases {
                self.by_alias
                    .entry(alias.clone())
                    .or_default()
                    .insert(name.clone());
            }
            if let EntryKind::Workload { node, services } = &new.kind {
                if !node.is_empty() {
                    self.on_node
                        .entry(node.clone())
                        .or_default()
                        .insert(name.clone());
                }
                for service in services {
                    self.endpoints
                        .entry(service.clone())
                        .or_default()
                        .insert(name.clone());
                }
            }
        }
        self.addresses.put(&mut self.revision, name, new);
    }

    fn unindex(&mut self, old: &Entry) {
        let remove = |map: &mut HashMap<ArcStr, BTreeSet<ArcStr>>, key: &ArcStr| {
            if let Some(names) = map.get_mut(key) {
                names.remove(&old.name);
                if names.is_empty() {
                    map.remove(key);
                }
            }
        };
        for alias in &old.aliases {
            remove(&mut self.by_alias, alias);
        }
        if let EntryKind::Workload { node, services } = &old.kind {
            remove(&mut self.on_node, node);
            for service in services {
                remove(&mut self.endpoints, service);
            }
        }
    }
}

impl Records {
    fn put(&mut self, revision: &mut u64, name: &ArcStr, new: Option<Entry>) {
        let is_removed = new.is_none();
        let same = match (self.entries.get(name), &new) {
            (Some(old), Some(new)) => old.version == new.version && old.aliases == new.aliases,
            (None, None) => true,
            _ => false,
        };
        if same {
            return;
        }
        match new {
            Some(entry) => drop(self.entries.insert(name.clone(), Arc::new(entry))),
            None => drop(self.entries.remove(name)),
        }
        *revision += 1;
        if let Some(before) = self.changed_at.insert(name.clone(), *revision) {
            self.log.remove(&before);
        }
        self.log.insert(*revision, name.clone());
        if is_removed {
            self.removed.push_back((*revision, name.clone()));
            if self.removed.len() > MAX_REMOVED {
                self.forget_oldest();
            }
        }
    }

    fn forget_oldest(&mut self) {
        let Some((at, name)) = self.removed.pop_front() else {
            return;
        };
        if self.changed_at.get(&name) == Some(&at) {
            self.changed_at.remove(&name);
            self.log.remove(&at);
            self.floor = self.floor.max(at);
        }
    }
}
