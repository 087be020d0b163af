//! What a change of one object makes stale.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ambit_k8s_api::{Kind, ObjectKey};
use ambit_model::{ArcStr, Locality, PolicyKey};
use ipnet::IpNet;

use super::{Index, Input, Objects};
use crate::derive::{
    Labels, PodDirectory,
    entries::{ServiceEntryInput, WorkloadEntryInput},
    peer_auth::{self, PeerAuthInput},
    pods::PodInput,
    policies::PolicyInput,
    selects,
    services::ServiceInput,
    slices::{PodEndpoint, SliceInput},
};

impl Index {
    /// Replaces what an object was understood to be, and marks what depends on it.
    pub(super) fn put(&mut self, key: &ObjectKey, input: Input, pods: &mut PodDirectory) {
        match input {
            Input::Namespace(distribution, network) => {
                self.put_namespace(&key.name, distribution, network);
            }
            Input::Node(locality) => self.put_node(&key.name, Some(locality)),
            Input::Pod(pod) => self.put_pod(key, Some(pod), pods),
            Input::Service(service) => self.put_service(key, service),
            Input::Slice(slice) => self.put_slice(key, slice),
            Input::ServiceEntry(entry) => self.put_service_entry(key, Some(entry)),
            Input::WorkloadEntry(entry) => self.put_workload_entry(key, Some(entry)),
            Input::Policy(policy) => self.put_policy(key, Some(policy)),
            Input::PeerAuth(policy) => self.put_peer_auth(key, Some(policy)),
            Input::Nothing => self.remove(key, pods),
        }
    }

    fn remove(&mut self, key: &ObjectKey, pods: &mut PodDirectory) {
        match key.kind {
            Kind::Namespace => self.put_namespace(&key.name, None, ArcStr::new()),
            Kind::Node => self.put_node(&key.name, None),
            Kind::Pod => self.put_pod(key, None, pods),
            Kind::Service => self.put_service(key, None),
            Kind::EndpointSlice => self.put_slice(key, None),
            Kind::ServiceEntry => self.put_service_entry(key, None),
            Kind::WorkloadEntry => self.put_workload_entry(key, None),
            Kind::AuthorizationPolicy => self.put_policy(key, None),
            Kind::PeerAuthentication => self.put_peer_auth(key, None),
            Kind::ServiceAccount | Kind::Deployment => {}
        }
    }

    fn put_node(&mut self, name: &ArcStr, new: Option<Locality>) {
        let old = match new.clone() {
            Some(locality) => self.nodes.insert(name.clone(), locality),
            None => self.nodes.remove(name),
        };
        if old != new {
            let on_node = self.on_node.get(name).into_iter().flatten().cloned();
            self.dirty.workloads.extend(on_node);
        }
    }

    fn put_service(&mut self, key: &ObjectKey, new: Option<ServiceInput>) {
        let old = replace(&mut self.objects(key).services, &key.name, new.clone());
        if old == new {
            return;
        }
        let vips = |service: &Option<ServiceInput>| -> Vec<IpAddr> {
            service.iter().flat_map(|one| one.vips.clone()).collect()
        };
        let named_by = self.addresses.own(key, &vips(&old), &vips(&new));
        self.mark_entries(named_by);
        let domain = self.config.cluster_domain.clone();
        let hosts = |service: &Option<ServiceInput>| -> Vec<ArcStr> {
            service
                .iter()
                .map(|service| service.hostname(&domain))
                .collect()
        };
        self.declare(key, hosts(&old), hosts(&new));
        for service in old.iter().chain(&new) {
            self.mark_selected(&key.namespace, service.selector.as_ref());
        }
        self.mark_slices(&key.namespace, &key.name);
    }

    fn put_slice(&mut self, key: &ObjectKey, new: Option<SliceInput>) {
        let old = replace(&mut self.objects(key).slices, &key.name, new.clone());
        if old == new {
            return;
        }
        self.dirty.workloads.insert(key.clone());
        let pods = old.iter().chain(&new).flat_map(|slice| &slice.pods);
        self.dirty.workloads.extend(pods.map(pod_key));
    }

    fn put_service_entry(&mut self, key: &ObjectKey, new: Option<ServiceEntryInput>) {
        let old = replace(
            &mut self.objects(key).service_entries,
            &key.name,
            new.clone(),
        );
        if old == new {
            return;
        }
        let named = |entry: &Option<ServiceEntryInput>| -> Vec<IpNet> {
            entry.iter().flat_map(|entry| entry.named()).collect()
        };
        self.addresses.name(key, &named(&old), &named(&new));
        if new.is_none() {
            self.set_conflicts(key, Vec::new());
        }
        let hosts = |entry: &Option<ServiceEntryInput>| -> Vec<ArcStr> {
            entry.iter().flat_map(|entry| entry.hosts.clone()).collect()
        };
        self.declare(key, hosts(&old), hosts(&new));
        self.dirty.workloads.insert(key.clone());
        for entry in old.iter().chain(&new) {
            self.mark_selected(&key.namespace, entry.selector.as_ref());
        }
    }

    fn put_workload_entry(&mut self, key: &ObjectKey, new: Option<WorkloadEntryInput>) {
        let objects = self.objects(key);
        let old = replace(&mut objects.workload_entries, &key.name, new.clone());
        if old == new {
            return;
        }
        let named = |entry: &Option<WorkloadEntryInput>| -> Vec<IpNet> {
            let ip = entry.iter().filter_map(|one| one.entry.ip());
            ip.map(IpNet::from).collect()
        };
        self.addresses.name(key, &named(&old), &named(&new));
        self.dirty.workloads.insert(key.clone());
    }

    /// Marks all that entries make.
    fn mark_entries(&mut self, entries: BTreeSet<ObjectKey>) {
        for key in entries {
            let objects = self.namespaces.get(&key.namespace);
            let entry = objects.and_then(|objects| objects.service_entries.get(&key.name));
            if let (Kind::ServiceEntry, Some(entry)) = (key.kind, entry) {
                self.dirty.hosts.extend(entry.hosts.iter().cloned());
            }
            self.dirty.workloads.insert(key);
        }
    }

    fn objects(&mut self, key: &ObjectKey) -> &mut Objects {
        self.namespaces.entry(key.namespace.clone()).or_default()
    }

    fn put_namespace(&mut self, name: &ArcStr, distribution: Option<String>, network: ArcStr) {
        let objects = self.namespaces.entry(name.clone()).or_default();
        if objects.distribution != distribution {
            objects.distribution = distribution;
            let domain = &self.config.cluster_domain;
            let services = objects
                .services
                .values()
                .map(|service| service.hostname(domain));
            let entries = objects
                .service_entries
                .values()
                .flat_map(|entry| entry.hosts.iter().cloned());
            self.dirty.hosts.extend(services.chain(entries));
        }
        if *name == self.config.root_namespace && self.network != network {
            self.network = network;
            self.dirty.hosts.extend(self.declares.keys().cloned());
            self.mark_all();
        }
    }

    fn put_pod(&mut self, key: &ObjectKey, new: Option<PodInput>, pods: &mut PodDirectory) {
        match &new {
            Some(pod) => pods.insert(pod),
            None => pods.remove(&key.namespace, &key.name),
        }
        let old = replace(&mut self.objects(key).pods, &key.name, new.clone());
        if old == new {
            return;
        }
        let ips = |pod: &Option<PodInput>| -> Vec<IpAddr> {
            let published = pod.iter().filter(|pod| pod.is_published());
            published.flat_map(|pod| pod.ips.clone()).collect()
        };
        let named_by = self.addresses.own(key, &ips(&old), &ips(&new));
        self.mark_entries(named_by);
        if let Some(old) = &old
            && let Some(on_node) = self.on_node.get_mut(&old.node)
        {
            on_node.remove(key);
            if on_node.is_empty() {
                self.on_node.remove(&old.node);
            }
        }
        if let Some(new) = &new {
            self.on_node
                .entry(new.node.clone())
                .or_default()
                .insert(key.clone());
        }
        self.dirty.workloads.insert(key.clone());
    }

    /// An object declares other hosts than before: every record of them may change, and with it the
    /// endpoints of all who declare them.
    fn declare(&mut self, key: &ObjectKey, old: Vec<ArcStr>, new: Vec<ArcStr>) {
        for host in &old {
            if let Some(declarers) = self.declares.get_mut(host) {
                declarers.remove(key);
                if declarers.is_empty() {
                    self.declares.remove(host);
                }
            }
        }
        for host in &new {
            self.declares
                .entry(host.clone())
                .or_default()
                .insert(key.clone());
        }
        for host in old.into_iter().chain(new) {
            let others: Vec<_> = self
                .declares
                .get(&host)
                .into_iter()
                .flatten()
                .cloned()
                .collect();
            for other in others
                .into_iter()
                .filter(|other| other != key && other.kind == Kind::ServiceEntry)
            {
                let selector = self
                    .namespaces
                    .get(&other.namespace)
                    .and_then(|objects| objects.service_entries.get(&other.name))
                    .and_then(|entry| entry.selector.clone());
                self.mark_selected(&other.namespace, selector.as_ref());
                self.dirty.workloads.insert(other);
            }
            self.dirty.hosts.insert(host);
        }
    }

    /// Marks the pods and workload entries that a selector selects.
    fn mark_selected(&mut self, namespace: &ArcStr, selector: Option<&Labels>) {
        let (Some(selector), Some(objects)) = (selector, self.namespaces.get(namespace)) else {
            return;
        };
        let pods = objects
            .pods
            .iter()
            .filter(|(_, pod)| selects(selector, &pod.labels));
        let entries = objects
            .workload_entries
            .iter()
            .filter(|(_, entry)| selects(selector, &entry.entry.labels));
        let key = |kind, name: &ArcStr| ObjectKey::new(kind, namespace.clone(), name.clone());
        self.dirty
            .workloads
            .extend(pods.map(|(name, _)| key(Kind::Pod, name)));
        self.dirty
            .workloads
            .extend(entries.map(|(name, _)| key(Kind::WorkloadEntry, name)));
    }

    /// Marks the slices of a service and the pods they name.
    fn mark_slices(&mut self, namespace: &ArcStr, service: &ArcStr) {
        let Some(objects) = self.namespaces.get(namespace) else {
            return;
        };
        for slice in objects
            .slices
            .values()
            .filter(|slice| slice.service == *service)
        {
            self.dirty.workloads.insert(ObjectKey::new(
                Kind::EndpointSlice,
                namespace.clone(),
                slice.name.clone(),
            ));
            self.dirty.workloads.extend(slice.pods.iter().map(pod_key));
        }
    }

    /// Marks every workload of a namespace.
    fn mark_namespace(&mut self, namespace: &ArcStr) {
        let Some(objects) = self.namespaces.get(namespace) else {
            return;
        };
        let key =
            |kind: Kind| move |name: &ArcStr| ObjectKey::new(kind, namespace.clone(), name.clone());
        self.dirty
            .workloads
            .extend(objects.pods.keys().map(key(Kind::Pod)));
        self.dirty.workloads.extend(
            objects
                .workload_entries
                .keys()
                .map(key(Kind::WorkloadEntry)),
        );
        self.dirty
            .workloads
            .extend(objects.service_entries.keys().map(key(Kind::ServiceEntry)));
        self.dirty
            .workloads
            .extend(objects.slices.keys().map(key(Kind::EndpointSlice)));
    }

    fn mark_all(&mut self) {
        let namespaces: Vec<_> = self.namespaces.keys().cloned().collect();
        for namespace in &namespaces {
            self.mark_namespace(namespace);
        }
    }

    fn put_policy(&mut self, key: &ObjectKey, new: Option<PolicyInput>) {
        let old = replace(&mut self.objects(key).policies, &key.name, new.clone());
        if old == new {
            return;
        }
        let name = PolicyKey {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
        };
        self.dirty.policies.insert(name);
        let listed = |policy: &Option<PolicyInput>| {
            policy
                .as_ref()
                .filter(|policy| policy.sent.is_some())
                .and_then(|policy| policy.selector.clone())
        };
        let (old, new) = (listed(&old), listed(&new));
        if old == new {
            return;
        }
        let namespaces: Vec<_> = if key.namespace == self.config.root_namespace {
            self.namespaces.keys().cloned().collect()
        } else {
            vec![key.namespace.clone()]
        };
        for namespace in namespaces {
            for selector in [old.as_ref(), new.as_ref()] {
                self.mark_selected(&namespace, selector);
                if selector.is_some() {
                    self.mark_service_entries(&namespace);
                }
            }
        }
    }

    fn mark_service_entries(&mut self, namespace: &ArcStr) {
        let Some(objects) = self.namespaces.get(namespace) else {
            return;
        };
        let with_endpoints = objects
            .service_entries
            .iter()
            .filter(|(_, entry)| !entry.endpoints.is_empty());
        let key = |(name, _): (&ArcStr, _)| {
            ObjectKey::new(Kind::ServiceEntry, namespace.clone(), name.clone())
        };
        self.dirty.workloads.extend(with_endpoints.map(key));
    }

    fn put_peer_auth(&mut self, key: &ObjectKey, new: Option<PeerAuthInput>) {
        let old = replace(&mut self.objects(key).peer_auths, &key.name, new.clone());
        if old == new {
            return;
        }
        self.peer_auth_count =
            self.peer_auth_count + usize::from(new.is_some()) - usize::from(old.is_some());
        self.dirty
            .policies
            .insert(peer_auth::static_strict(&self.config.root_namespace).key());
        self.dirty
            .policies
            .insert(converted_key(&key.namespace, &key.name));
        let for_all = old
            .iter()
            .chain(&new)
            .any(|policy| policy.selector.is_none());
        if key.namespace == self.config.root_namespace && for_all {
            self.mark_all();
            let all = self.namespaces.iter().flat_map(|(namespace, objects)| {
                objects
                    .peer_auths
                    .keys()
                    .map(|name| converted_key(namespace, name))
            });
            self.dirty.policies.extend(all);
        } else if for_all {
            self.mark_namespace(&key.namespace);
            let names = self
                .namespaces
                .get(&key.namespace)
                .into_iter()
                .flat_map(|objects| objects.peer_auths.keys());
            self.dirty
                .policies
                .extend(names.map(|name| converted_key(&key.namespace, name)));
        } else {
            for policy in old.iter().chain(&new) {
                self.mark_selected(&key.namespace, policy.selector.as_ref());
            }
            self.mark_service_entries(&key.namespace);
        }
    }
}

fn pod_key(endpoint: &PodEndpoint) -> ObjectKey {
    ObjectKey::new(Kind::Pod, endpoint.namespace.clone(), endpoint.pod.clone())
}

/// Name of the policy made for a PeerAuthentication.
fn converted_key(namespace: &ArcStr, name: &ArcStr) -> PolicyKey {
    PolicyKey {
        namespace: namespace.clone(),
        name: arcstr::format!("{}{name}", peer_auth::CONVERTED),
    }
}

fn replace<V>(map: &mut BTreeMap<ArcStr, V>, name: &ArcStr, new: Option<V>) -> Option<V> {
    match new {
        Some(value) => map.insert(name.clone(), value),
        None => map.remove(name),
    }
}
