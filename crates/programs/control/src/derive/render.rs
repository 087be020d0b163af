//! Renders records from the objects as understood.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ambit_k8s_api::{Kind, ObjectKey, istio::Resolution};
use ambit_model::{
    ArcStr, Authorization, NamespacedHostname, NetworkMode, PolicyKey, PortMap, Protocol,
    Visibility, Workload, WorkloadKind, WorkloadStatus, WorkloadUid,
};

use ipnet::IpNet;

use super::{
    Delta, Index, Labels, ServiceRecord,
    entries::{Address, EntryInput, ServiceEntryInput},
    index::Objects,
    peer_auth,
    pods::{PodInput, canonical},
    selects,
};
use crate::problems::{Problem, Severity};

type Endpoints = BTreeMap<NamespacedHostname, PortMap>;

impl Index {
    pub(super) fn render_dirty(&mut self) -> Delta {
        let dirty = std::mem::take(&mut self.dirty);
        let mut delta = Delta::default();
        for host in dirty.hosts {
            self.flush_host(&host, &mut delta);
        }
        for key in dirty.workloads {
            self.flush_workloads(&key, &mut delta);
        }
        for key in dirty.policies {
            self.flush_policy(key, &mut delta);
        }
        delta.workloads.sort_by(|a, b| a.0.cmp(&b.0));
        delta.services.sort_by(|a, b| a.0.cmp(&b.0));
        delta
    }

    /// Notes which addresses of an entry are somebody else's.
    fn flush_conflicts(&mut self, key: &ObjectKey) {
        let Some(objects) = self.namespaces.get(&key.namespace) else {
            return;
        };
        let problem = |field: String, message: String| Problem {
            severity: Severity::Warning,
            object: key.clone(),
            field,
            message,
            origin: None,
        };
        let mut conflicts = Vec::new();
        let mut endpoint = |field: String, entry: &EntryInput| {
            if let Some(pod) = self.pod_at(entry) {
                let message = format!(
                    "{:?} is the address of {pod}: services have it as an endpoint, but the address itself stays the pod's",
                    entry.text
                );
                conflicts.push(problem(field, message));
            }
        };
        if key.kind == Kind::WorkloadEntry
            && let Some(input) = objects.workload_entries.get(&key.name)
        {
            endpoint("spec.address".to_owned(), &input.entry);
        }
        if key.kind == Kind::ServiceEntry
            && let Some(input) = objects.service_entries.get(&key.name)
        {
            for (index, one) in input.endpoints.iter().enumerate() {
                endpoint(format!("spec.endpoints[{index}].address"), one);
            }
            let taken = input.addresses().filter_map(|(field, net)| {
                let owner = self.owner_elsewhere(input, net)?;
                let message = if net.prefix_len() == net.max_prefix_len() {
                    format!("{} belongs to {owner}: it is not published", net.addr())
                } else {
                    format!("{net} has addresses of other namespaces' pods, for instance of {owner}: it is not published")
                };
                Some(problem(field.clone(), message))
            });
            conflicts.extend(taken.collect::<Vec<_>>());
        }
        self.set_conflicts(key, conflicts);
    }

    /// Who of another namespace owns a virtual address that an entry names.
    fn owner_elsewhere(&self, entry: &ServiceEntryInput, net: &IpNet) -> Option<&ObjectKey> {
        // Without load balancing, what is known inside a prefix is reached as itself.
        let is_prefix = net.prefix_len() != net.max_prefix_len();
        let passes_by = is_prefix && entry.resolution == Resolution::None;
        let owner = self.addresses.owner_elsewhere(net, &entry.namespace);
        owner.filter(|_| !passes_by)
    }

    /// The pod whose address an entry names.
    fn pod_at(&self, entry: &EntryInput) -> Option<&ObjectKey> {
        let is_here = entry
            .network
            .as_ref()
            .is_none_or(|network| *network == self.network);
        self.addresses.pod_at(&entry.ip().filter(|_| is_here)?)
    }

    fn flush_workloads(&mut self, key: &ObjectKey, delta: &mut Delta) {
        self.flush_conflicts(key);
        let new = self.render_workloads(key);
        let uids: Vec<WorkloadUid> = new.iter().map(|workload| workload.uid.clone()).collect();
        let old = if uids.is_empty() {
            self.told.made_by.remove(key)
        } else {
            self.told.made_by.insert(key.clone(), uids.clone())
        };
        for uid in old.into_iter().flatten().filter(|uid| !uids.contains(uid)) {
            self.told.workloads.remove(&uid);
            delta.workloads.push((uid, None));
        }
        for workload in new {
            let same = self
                .told
                .workloads
                .get(&workload.uid)
                .is_some_and(|old| **old == workload);
            if !same {
                let workload = Arc::new(workload);
                self.told
                    .workloads
                    .insert(workload.uid.clone(), Arc::clone(&workload));
                delta.workloads.push((workload.uid.clone(), Some(workload)));
            }
        }
    }

    fn flush_host(&mut self, host: &ArcStr, delta: &mut Delta) {
        let new = self.render_host(host);
        let names: Vec<_> = new
            .iter()
            .map(|record| record.service.namespaced_hostname())
            .collect();
        let old = if names.is_empty() {
            self.told.of_host.remove(host)
        } else {
            self.told.of_host.insert(host.clone(), names.clone())
        };
        for name in old
            .into_iter()
            .flatten()
            .filter(|name| !names.contains(name))
        {
            self.told.services.remove(&name);
            delta.services.push((name, None));
        }
        for record in new {
            let name = record.service.namespaced_hostname();
            let same = self
                .told
                .services
                .get(&name)
                .is_some_and(|old| **old == record);
            if !same {
                let record = Arc::new(record);
                self.told.services.insert(name.clone(), Arc::clone(&record));
                delta.services.push((name, Some(record)));
            }
        }
    }

    fn flush_policy(&mut self, key: PolicyKey, delta: &mut Delta) {
        match self.render_policy(&key) {
            Some(policy) => {
                let same = self
                    .told
                    .policies
                    .get(&key)
                    .is_some_and(|old| **old == policy);
                if !same {
                    let policy = Arc::new(policy);
                    self.told.policies.insert(key.clone(), Arc::clone(&policy));
                    delta.policies.push((key, Some(policy)));
                }
            }
            None => {
                if self.told.policies.remove(&key).is_some() {
                    delta.policies.push((key, None));
                }
            }
        }
    }

    // === policies ===

    fn render_policy(&self, key: &PolicyKey) -> Option<Authorization> {
        let static_strict = peer_auth::static_strict(&self.config.root_namespace);
        if *key == static_strict.key() {
            return self.any_peer_auth().then_some(static_strict);
        }
        let objects = self.namespaces.get(&key.namespace)?;
        if let Some(name) = key.name.strip_prefix(peer_auth::CONVERTED) {
            let policy = objects.peer_auths.get(name)?;
            let effective = key.namespace != self.config.root_namespace;
            return policy
                .converted(self.inherited(objects))
                .filter(|_| effective);
        }
        objects.policies.get(&key.name)?.sent.clone()
    }

    fn inherited(&self, objects: &Objects) -> peer_auth::Mode {
        let root = self.namespaces.get(&self.config.root_namespace);
        let mesh = root.and_then(|root| peer_auth::of_namespace(root.peer_auths.values()));
        peer_auth::inherited(mesh, peer_auth::of_namespace(objects.peer_auths.values()))
    }

    /// The policies that a workload with these labels lists.
    fn policies_for(&self, namespace: &ArcStr, objects: &Objects, labels: &Labels) -> Vec<ArcStr> {
        let root_namespace = &self.config.root_namespace;
        let root = self
            .namespaces
            .get(root_namespace)
            .filter(|_| namespace != root_namespace);
        let candidates = [(namespace, Some(objects)), (root_namespace, root)];
        let mut names: Vec<ArcStr> = candidates
            .into_iter()
            .filter_map(|(namespace, objects)| Some((namespace, objects?)))
            .flat_map(|(namespace, objects)| {
                objects.policies.iter().map(move |entry| (namespace, entry))
            })
            .filter(|(_, (_, policy))| {
                let selected = policy
                    .selector
                    .as_ref()
                    .is_some_and(|selector| selects(selector, labels));
                policy.sent.is_some() && selected
            })
            .map(|(namespace, (name, _))| arcstr::format!("{namespace}/{name}"))
            .collect();
        names.sort_unstable();
        let peer_auth = peer_auth::for_workload(
            objects.peer_auths.values(),
            self.inherited(objects),
            namespace,
            labels,
            root_namespace,
        );
        names.extend(peer_auth.map(|key| ArcStr::from(key.to_string())));
        names
    }

    // === services ===

    /// The records of a host: one a namespace, a Kubernetes service before service entries, older
    /// before newer; one of them canonical, by the same order.
    fn render_host(&self, host: &ArcStr) -> Vec<ServiceRecord> {
        let mut winners: BTreeMap<&ArcStr, (Rank<'_>, &ObjectKey)> = BTreeMap::new();
        for key in self.declares.get(host).into_iter().flatten() {
            let Some(rank) = self.rank(key) else { continue };
            let winner = winners.entry(&key.namespace).or_insert((rank, key));
            if rank < winner.0 {
                *winner = (rank, key);
            }
        }
        let public = winners
            .values()
            .filter(|(_, key)| self.is_public(key, host));
        let canonical = public.min().map(|(_, key)| *key);
        winners
            .values()
            .filter_map(|(_, key)| {
                let objects = self.namespaces.get(&key.namespace)?;
                let distribution = objects.distribution.as_deref();
                let mut record = match key.kind {
                    Kind::Service => objects.services.get(&key.name)?.record(
                        &self.config.cluster_domain,
                        &self.network,
                        distribution,
                    ),
                    _ => objects.service_entries.get(&key.name)?.record(
                        host,
                        &self.network,
                        distribution,
                        |entry, net| self.owner_elsewhere(entry, net).is_none(),
                    ),
                };
                record.service.canonical = canonical == Some(*key);
                Some(record)
            })
            .collect()
    }

    /// Whether every namespace sees what an object makes of a host.
    fn is_public(&self, key: &ObjectKey, host: &ArcStr) -> bool {
        let objects = self.namespaces.get(&key.namespace);
        let entry = objects.and_then(|objects| objects.service_entries.get(&key.name));
        key.kind == Kind::Service
            || entry.is_some_and(|entry| entry.visibility(host) == Visibility::Public)
    }

    fn rank<'a>(&'a self, key: &'a ObjectKey) -> Option<Rank<'a>> {
        let objects = self.namespaces.get(&key.namespace)?;
        let (is_entry, created) = match key.kind {
            Kind::Service => (false, &objects.services.get(&key.name)?.created),
            _ => {
                let entries = &objects.service_entries;
                let entry = entries.get(&key.name).filter(|one| one.is_exported())?;
                (true, &entry.created)
            }
        };
        Some((is_entry, created, &key.namespace, &key.name))
    }

    /// The hosts of an entry whose record it makes.
    fn hosts_won<'a>(&'a self, entry: &'a ServiceEntryInput) -> impl Iterator<Item = &'a ArcStr> {
        let own = ObjectKey::new(
            Kind::ServiceEntry,
            entry.namespace.clone(),
            entry.name.clone(),
        );
        entry.hosts.iter().filter(move |host| {
            let rivals = self.declares.get(*host).into_iter().flatten();
            let first = rivals
                .filter(|key| key.namespace == entry.namespace)
                .filter_map(|key| Some((self.rank(key)?, key)))
                .min();
            first.is_some_and(|(_, key)| *key == own)
        })
    }

    // === workloads ===

    fn render_workloads(&self, key: &ObjectKey) -> Vec<Workload> {
        let Some(objects) = self.namespaces.get(&key.namespace) else {
            return Vec::new();
        };
        match key.kind {
            Kind::Pod => objects
                .pods
                .get(&key.name)
                .and_then(|pod| self.workload_of_pod(objects, pod))
                .into_iter()
                .collect(),
            Kind::WorkloadEntry => self
                .workload_of_workload_entry(objects, key)
                .into_iter()
                .collect(),
            Kind::ServiceEntry => self.workloads_of_service_entry(objects, key),
            Kind::EndpointSlice => self.workloads_of_slice(objects, key),
            _ => Vec::new(),
        }
    }

    fn base(&self, namespace: &ArcStr, name: &ArcStr) -> Workload {
        Workload {
            name: name.clone(),
            namespace: namespace.clone(),
            network: self.network.clone(),
            trust_domain: self.config.trust_domain.clone(),
            cluster_id: self.config.cluster_id.clone(),
            workload_type: WorkloadKind::Pod,
            ..Workload::default()
        }
    }

    fn uid(&self, rest: &str) -> WorkloadUid {
        arcstr::format!("{}/{rest}", self.config.cluster_id)
    }

    fn workload_of_pod(&self, objects: &Objects, pod: &PodInput) -> Option<Workload> {
        if !pod.is_published() {
            return None;
        }
        let (canonical_name, canonical_revision) = canonical(&pod.labels, &pod.workload_name);
        let hbone = pod.captured || pod.native_tunnel;
        Some(Workload {
            uid: self.uid(&format!("/Pod/{}/{}", pod.namespace, pod.name)),
            workload_ips: pod.ips.clone(),
            protocol: if hbone {
                Protocol::Hbone
            } else {
                Protocol::Tcp
            },
            native_tunnel: pod.native_tunnel,
            network_mode: if pod.host_network {
                NetworkMode::HostNetwork
            } else {
                NetworkMode::Standard
            },
            service_account: pod.service_account.clone(),
            node: pod.node.clone(),
            workload_name: pod.workload_name.clone(),
            canonical_name,
            canonical_revision,
            authorization_policies: self.policies_for(&pod.namespace, objects, &pod.labels),
            status: if pod.ready {
                WorkloadStatus::Healthy
            } else {
                WorkloadStatus::Unhealthy
            },
            locality: self.nodes.get(&pod.node).cloned().unwrap_or_default(),
            services: self.services_of_pod(objects, pod),
            ..self.base(&pod.namespace, &pod.name)
        })
    }

    fn services_of_pod(&self, objects: &Objects, pod: &PodInput) -> Endpoints {
        let mut services = Endpoints::new();
        for service in objects.services.values() {
            if service
                .selector
                .as_ref()
                .is_some_and(|selector| selects(selector, &pod.labels))
            {
                let name = NamespacedHostname::new(
                    pod.namespace.clone(),
                    service.hostname(&self.config.cluster_domain),
                );
                services.insert(name, service.targets_in(pod));
            }
        }
        for entry in objects.service_entries.values() {
            if entry
                .selector
                .as_ref()
                .is_some_and(|selector| selects(selector, &pod.labels))
            {
                for host in self.hosts_won(entry) {
                    let name = NamespacedHostname::new(pod.namespace.clone(), host.clone());
                    services.insert(name, entry.targets_in(pod));
                }
            }
        }
        // Slices made by hand, of services that select nothing themselves.
        for slice in objects.slices.values() {
            let names_it = slice.pods.iter().any(|endpoint| {
                endpoint.namespace == pod.namespace
                    && endpoint.pod == pod.name
                    && (endpoint.uid.is_empty() || endpoint.uid == pod.uid)
            });
            let service = objects
                .services
                .get(&slice.service)
                .filter(|service| service.selector.is_none());
            if let (true, Some(service)) = (names_it, service) {
                let name = NamespacedHostname::new(
                    pod.namespace.clone(),
                    service.hostname(&self.config.cluster_domain),
                );
                services.insert(name, service.targets_elsewhere(&slice.ports));
            }
        }
        services
    }

    fn workload_of_workload_entry(&self, objects: &Objects, key: &ObjectKey) -> Option<Workload> {
        let input = objects.workload_entries.get(&key.name)?;
        let entry = &input.entry;
        let mut services = Endpoints::new();
        for service in objects.services.values() {
            if service
                .selector
                .as_ref()
                .is_some_and(|selector| selects(selector, &entry.labels))
            {
                let host = service.hostname(&self.config.cluster_domain);
                let name = NamespacedHostname::new(key.namespace.clone(), host);
                services.insert(name, service.targets_elsewhere(&entry.ports));
            }
        }
        for service in objects.service_entries.values() {
            if service
                .selector
                .as_ref()
                .is_some_and(|selector| selects(selector, &entry.labels))
            {
                for host in self.hosts_won(service) {
                    let name = NamespacedHostname::new(key.namespace.clone(), host.clone());
                    services.insert(name, service.targets(&entry.ports));
                }
            }
        }
        let uid = self.uid(&format!(
            "networking.istio.io/WorkloadEntry/{}/{}",
            key.namespace, key.name
        ));
        Some(self.workload_of_entry(objects, &input.namespace, &input.name, uid, entry, services))
    }

    fn workloads_of_service_entry(&self, objects: &Objects, key: &ObjectKey) -> Vec<Workload> {
        let Some(entry) = objects.service_entries.get(&key.name) else {
            return Vec::new();
        };
        let hosts: BTreeSet<&ArcStr> = self.hosts_won(entry).collect();
        let uid = |address: &str| {
            self.uid(&format!(
                "networking.istio.io/ServiceEntry/{}/{}/{address}",
                key.namespace, key.name
            ))
        };
        if entry.resolves_hosts() {
            // A wildcard names nothing that could be resolved.
            return hosts
                .into_iter()
                .filter(|host| !host.starts_with('*'))
                .map(|host| {
                    let name = NamespacedHostname::new(key.namespace.clone(), host.clone());
                    Workload {
                        uid: uid(host),
                        hostname: host.clone(),
                        workload_name: key.name.clone(),
                        canonical_name: key.name.clone(),
                        canonical_revision: "latest".into(),
                        services: [(name, entry.targets(&BTreeMap::new()))].into(),
                        ..self.base(&key.namespace, &key.name)
                    }
                })
                .collect();
        }
        if hosts.is_empty() {
            return Vec::new();
        }
        let endpoints = entry.endpoints.iter();
        endpoints
            .map(|endpoint| {
                let name =
                    |host: &ArcStr| NamespacedHostname::new(key.namespace.clone(), host.clone());
                let services = hosts
                    .iter()
                    .map(|host| (name(host), entry.targets(&endpoint.ports)))
                    .collect();
                self.workload_of_entry(
                    objects,
                    &key.namespace,
                    &key.name,
                    uid(&endpoint.text),
                    endpoint,
                    services,
                )
            })
            .collect()
    }

    fn workload_of_entry(
        &self,
        objects: &Objects,
        namespace: &ArcStr,
        name: &ArcStr,
        uid: WorkloadUid,
        entry: &EntryInput,
        services: Endpoints,
    ) -> Workload {
        let workload_name = entry
            .labels
            .get(ambit_k8s_api::labels::WORKLOAD_NAME)
            .filter(|name| !name.is_empty())
            .map_or_else(|| name.clone(), ArcStr::from);
        let (canonical_name, canonical_revision) = canonical(&entry.labels, &workload_name);
        let base = self.base(namespace, name);
        // A pod's address stays the pod's: an entry that has it, too, is found through services only.
        let is_pods = self.pod_at(entry).is_some();
        Workload {
            uid,
            workload_ips: match &entry.address {
                Address::Ip(ip) => vec![*ip],
                Address::Host(_) => Vec::new(),
            },
            hostname: match &entry.address {
                Address::Ip(_) => ArcStr::new(),
                Address::Host(host) => host.clone(),
            },
            network: entry
                .network
                .clone()
                .unwrap_or_else(|| base.network.clone()),
            protocol: if entry.native_tunnel {
                Protocol::Hbone
            } else {
                Protocol::Tcp
            },
            native_tunnel: entry.native_tunnel,
            service_account: entry.service_account.clone(),
            workload_name,
            canonical_name,
            canonical_revision,
            network_mode: if is_pods {
                NetworkMode::HostNetwork
            } else {
                NetworkMode::Standard
            },
            authorization_policies: self.policies_for(namespace, objects, &entry.labels),
            locality: entry.locality.clone(),
            capacity: entry.capacity,
            services,
            ..base
        }
    }

    fn workloads_of_slice(&self, objects: &Objects, key: &ObjectKey) -> Vec<Workload> {
        let Some(slice) = objects.slices.get(&key.name) else {
            return Vec::new();
        };
        let Some(service) = objects.services.get(&slice.service) else {
            return Vec::new();
        };
        let host = NamespacedHostname::new(
            key.namespace.clone(),
            service.hostname(&self.config.cluster_domain),
        );
        let ports = service.targets_elsewhere(&slice.ports);
        slice
            .addresses
            .iter()
            .map(|(ip, ready)| Workload {
                uid: self.uid(&format!(
                    "discovery.k8s.io/EndpointSlice/{}/{}/{ip}",
                    key.namespace, key.name
                )),
                workload_ips: vec![*ip],
                // The address may belong to something else as well: never claim it.
                network_mode: NetworkMode::HostNetwork,
                service_account: ArcStr::new(),
                workload_type: WorkloadKind::Deployment,
                status: if *ready {
                    WorkloadStatus::Healthy
                } else {
                    WorkloadStatus::Unhealthy
                },
                services: [(host.clone(), ports.clone())].into(),
                ..self.base(&key.namespace, &key.name)
            })
            .collect()
    }
}

/// How services of one host are ordered: Kubernetes' own, then by age, then by name.
type Rank<'a> = (bool, &'a String, &'a ArcStr, &'a ArcStr);
