//! The objects as understood, and what must be rendered anew when one changes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use ambit_k8s_api::{Kind, Namespace, Node, Object, ObjectKey, labels};
use ambit_model::{
    ArcStr, Authorization, Locality, NamespacedHostname, PolicyKey, Workload, WorkloadUid,
};

use super::{
    Delta, Labels, MeshConfig, PodDirectory, ServiceRecord,
    entries::{ServiceEntryInput, WorkloadEntryInput},
    peer_auth::PeerAuthInput,
    pods::PodInput,
    policies::PolicyInput,
    selects,
    services::ServiceInput,
    slices::SliceInput,
};
use crate::problems::{FieldError, Note, Problem, Severity};

/// The objects of one namespace, by name.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) distribution: Option<String>,
    pub(super) pods: BTreeMap<ArcStr, PodInput>,
    pub(super) services: BTreeMap<ArcStr, ServiceInput>,
    pub(super) slices: BTreeMap<ArcStr, SliceInput>,
    pub(super) service_entries: BTreeMap<ArcStr, ServiceEntryInput>,
    pub(super) workload_entries: BTreeMap<ArcStr, WorkloadEntryInput>,
    pub(super) policies: BTreeMap<ArcStr, PolicyInput>,
    pub(super) peer_auths: BTreeMap<ArcStr, PeerAuthInput>,
}

/// What must be rendered anew.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    /// Objects that make workloads.
    pub(super) workloads: BTreeSet<ObjectKey>,
    /// Hosts that have services.
    pub(super) hosts: BTreeSet<ArcStr>,
    /// Policies.
    pub(super) policies: BTreeSet<PolicyKey>,
}

/// The records as last told.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) workloads: HashMap<WorkloadUid, Arc<Workload>>,
    pub(super) made_by: HashMap<ObjectKey, Vec<WorkloadUid>>,
    pub(super) services: HashMap<NamespacedHostname, Arc<ServiceRecord>>,
    pub(super) of_host: HashMap<ArcStr, Vec<NamespacedHostname>>,
    pub(super) policies: HashMap<PolicyKey, Arc<Authorization>>,
}

/// See the module above.
#[derive(Debug)]
pub struct Index {
    pub(super) config: MeshConfig,
    pub(super) network: ArcStr,
    pub(super) namespaces: HashMap<ArcStr, Objects>,
    pub(super) nodes: HashMap<ArcStr, Locality>,
    pub(super) on_node: HashMap<ArcStr, BTreeSet<ObjectKey>>,
    /// Objects that declare a host.
    pub(super) declares: HashMap<ArcStr, BTreeSet<ObjectKey>>,
    peer_auth_count: usize,
    starting: bool,
    problems: BTreeMap<ObjectKey, Vec<Problem>>,
    pub(super) dirty: Dirty,
    pub(super) told: Told,
}

/// What an object of some kind was understood to be.
enum Input {
    Namespace(Option<String>, ArcStr),
    Node(Locality),
    Pod(PodInput),
    Service(Option<ServiceInput>),
    Slice(Option<SliceInput>),
    ServiceEntry(ServiceEntryInput),
    WorkloadEntry(WorkloadEntryInput),
    Policy(PolicyInput),
    PeerAuth(PeerAuthInput),
    Nothing,
}

impl Index {
    /// An index without objects. Until [`Index::started`] it is being filled for the first time.
    pub fn new(config: MeshConfig) -> Self {
        Self {
            config,
            network: ArcStr::new(),
            namespaces: HashMap::new(),
            nodes: HashMap::new(),
            on_node: HashMap::new(),
            declares: HashMap::new(),
            peer_auth_count: 0,
            starting: true,
            problems: BTreeMap::new(),
            dirty: Dirty::default(),
            told: Told::default(),
        }
    }

    /// Every object that existed at the start was applied. From now on an unusable policy that was not
    /// there before has no effect; one met before the start refuses everything in its scope, because
    /// what it said in an earlier life is not known.
    pub fn started(&mut self) {
        self.starting = false;
    }

    /// An object is there, or is as it is now. `pods` follows at once, records at the next flush.
    pub fn apply(&mut self, object: &Object, origin: Option<String>, pods: &mut PodDirectory) {
        let key = object.key();
        let problem = |severity, error: FieldError| Problem {
            severity,
            object: key.clone(),
            field: error.field,
            message: error.message,
            origin: origin.clone(),
        };
        let (input, problems) = match self.read(object) {
            Ok((input, notes)) => (
                Some(input),
                notes
                    .into_iter()
                    .map(|note| problem(Severity::Warning, note))
                    .collect(),
            ),
            Err(mut error) => {
                let stand_in = self.stand_in(object, &key);
                error.message += match (&stand_in, self.knows(&key)) {
                    (Some(_), _) => "; everything in its scope is refused until it is mended",
                    (None, true) => "; what it said before stays in force",
                    (None, false) => "; the object has no effect",
                };
                (stand_in, vec![problem(Severity::Error, error)])
            }
        };
        self.set_problems(&key, problems);
        if let Some(input) = input {
            self.put(&key, input, pods);
        }
    }

    /// An object is gone.
    pub fn delete(&mut self, key: &ObjectKey, pods: &mut PodDirectory) {
        self.set_problems(key, Vec::new());
        self.put(key, Input::Nothing, pods);
    }

    /// What is wrong with objects now.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.problems.values().flatten()
    }

    fn set_problems(&mut self, key: &ObjectKey, problems: Vec<Problem>) {
        let old = if problems.is_empty() {
            self.problems.remove(key);
            return;
        } else {
            self.problems.insert(key.clone(), problems.clone())
        };
        if old.as_ref() != Some(&problems) {
            for problem in &problems {
                match problem.severity {
                    Severity::Error => tracing::error!(%problem, "an object cannot be used"),
                    Severity::Warning => {
                        tracing::warn!(%problem, "an object has less effect than it says")
                    }
                }
            }
        }
    }

    fn read(&self, object: &Object) -> Result<(Input, Vec<Note>), FieldError> {
        let plain = |input| (input, Vec::new());
        Ok(match object {
            Object::Namespace(namespace) => plain(read_namespace(namespace)),
            Object::Node(node) => plain(Input::Node(read_node(node))),
            Object::Pod(pod) => plain(Input::Pod(PodInput::read(pod)?)),
            Object::Service(service) => {
                let (input, notes) = ServiceInput::read(service)?;
                (Input::Service(input), notes)
            }
            Object::EndpointSlice(slice) => plain(Input::Slice(SliceInput::read(slice)?)),
            Object::ServiceEntry(entry) => {
                plain(Input::ServiceEntry(ServiceEntryInput::read(entry)?))
            }
            Object::WorkloadEntry(entry) => {
                plain(Input::WorkloadEntry(WorkloadEntryInput::read(entry)?))
            }
            Object::AuthorizationPolicy(policy) => {
                let (input, notes) = PolicyInput::read(policy, &self.config)?;
                (Input::Policy(input), notes)
            }
            Object::PeerAuthentication(policy) => {
                let (input, notes) = PeerAuthInput::read(policy, &self.config)?;
                (Input::PeerAuth(input), notes)
            }
            Object::ServiceAccount(_) | Object::Deployment(_) => plain(Input::Nothing),
        })
    }

    fn stand_in(&self, object: &Object, key: &ObjectKey) -> Option<Input> {
        if !self.starting || self.knows(key) {
            return None;
        }
        match object {
            Object::AuthorizationPolicy(policy) => {
                PolicyInput::stand_in(policy, &self.config).map(Input::Policy)
            }
            Object::PeerAuthentication(policy) => {
                Some(Input::PeerAuth(PeerAuthInput::stand_in(policy)))
            }
            _ => None,
        }
    }

    fn knows(&self, key: &ObjectKey) -> bool {
        let ObjectKey {
            kind,
            namespace,
            name,
        } = key;
        if *kind == Kind::Node {
            return self.nodes.contains_key(name);
        }
        self.namespaces
            .get(namespace)
            .is_some_and(|objects| match kind {
                Kind::Pod => objects.pods.contains_key(name),
                Kind::Service => objects.services.contains_key(name),
                Kind::EndpointSlice => objects.slices.contains_key(name),
                Kind::ServiceEntry => objects.service_entries.contains_key(name),
                Kind::WorkloadEntry => objects.workload_entries.contains_key(name),
                Kind::AuthorizationPolicy => objects.policies.contains_key(name),
                Kind::PeerAuthentication => objects.peer_auths.contains_key(name),
                _ => false,
            })
    }

    /// Replaces what an object was understood to be, and marks what depends on it.
    fn put(&mut self, key: &ObjectKey, input: Input, pods: &mut PodDirectory) {
        let name = key.name.clone();
        match (key.kind, input) {
            (Kind::Namespace, Input::Namespace(distribution, network)) => {
                self.put_namespace(&name, distribution, network);
            }
            (Kind::Namespace, _) => self.put_namespace(&name, None, ArcStr::new()),
            (Kind::Node, input) => {
                let new = if let Input::Node(locality) = input {
                    Some(locality)
                } else {
                    None
                };
                let old = match new.clone() {
                    Some(locality) => self.nodes.insert(name.clone(), locality),
                    None => self.nodes.remove(&name),
                };
                if old != new {
                    self.dirty
                        .workloads
                        .extend(self.on_node.get(&name).into_iter().flatten().cloned());
                }
            }
            (Kind::Pod, input) => {
                let new = if let Input::Pod(pod) = input {
                    Some(pod)
                } else {
                    None
                };
                self.put_pod(key, new, pods);
            }
            (Kind::Service, input) => {
                let new = if let Input::Service(service) = input {
                    service
                } else {
                    None
                };
                let objects = self.objects(key);
                let old = replace(&mut objects.services, &name, new.clone());
                if old != new {
                    let domain = self.config.cluster_domain.clone();
                    let host = |service: &ServiceInput| service.hostname(&domain);
                    self.declare(
                        key,
                        old.iter().map(host).collect(),
                        new.iter().map(host).collect(),
                    );
                    for selector in old
                        .iter()
                        .chain(&new)
                        .map(|service| service.selector.as_ref())
                    {
                        self.mark_selected(&key.namespace, selector);
                    }
                    self.mark_slices(&key.namespace, &name);
                }
            }
            (Kind::EndpointSlice, input) => {
                let new = if let Input::Slice(slice) = input {
                    slice
                } else {
                    None
                };
                let old = replace(&mut self.objects(key).slices, &name, new.clone());
                if old != new {
                    self.dirty.workloads.insert(key.clone());
                    for endpoint in old.iter().chain(&new).flat_map(|slice| &slice.pods) {
                        let pod = ObjectKey::new(
                            Kind::Pod,
                            endpoint.namespace.clone(),
                            endpoint.pod.clone(),
                        );
                        self.dirty.workloads.insert(pod);
                    }
                }
            }
            (Kind::ServiceEntry, input) => {
                let new = if let Input::ServiceEntry(entry) = input {
                    Some(entry)
                } else {
                    None
                };
                let old = replace(&mut self.objects(key).service_entries, &name, new.clone());
                if old != new {
                    let hosts = |entry: &Option<ServiceEntryInput>| -> Vec<ArcStr> {
                        entry.iter().flat_map(|entry| entry.hosts.clone()).collect()
                    };
                    self.declare(key, hosts(&old), hosts(&new));
                    self.dirty.workloads.insert(key.clone());
                    for selector in old.iter().chain(&new).map(|entry| entry.selector.as_ref()) {
                        self.mark_selected(&key.namespace, selector);
                    }
                }
            }
            (Kind::WorkloadEntry, input) => {
                let new = if let Input::WorkloadEntry(entry) = input {
                    Some(entry)
                } else {
                    None
                };
                if replace(&mut self.objects(key).workload_entries, &name, new.clone()) != new {
                    self.dirty.workloads.insert(key.clone());
                }
            }
            (Kind::AuthorizationPolicy, input) => {
                let new = if let Input::Policy(policy) = input {
                    Some(policy)
                } else {
                    None
                };
                let old = replace(&mut self.objects(key).policies, &name, new.clone());
                self.put_policy(key, old, new);
            }
            (Kind::PeerAuthentication, input) => {
                let new = if let Input::PeerAuth(policy) = input {
                    Some(policy)
                } else {
                    None
                };
                let old = replace(&mut self.objects(key).peer_auths, &name, new.clone());
                self.put_peer_auth(key, old.as_ref(), new.as_ref());
            }
            _ => {}
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
            let pods = slice.pods.iter();
            let key = |pod: &super::slices::PodEndpoint| {
                ObjectKey::new(Kind::Pod, pod.namespace.clone(), pod.pod.clone())
            };
            self.dirty.workloads.extend(pods.map(key));
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

    fn put_policy(&mut self, key: &ObjectKey, old: Option<PolicyInput>, new: Option<PolicyInput>) {
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

    fn put_peer_auth(
        &mut self,
        key: &ObjectKey,
        old: Option<&PeerAuthInput>,
        new: Option<&PeerAuthInput>,
    ) {
        if old == new {
            return;
        }
        self.peer_auth_count =
            self.peer_auth_count + usize::from(new.is_some()) - usize::from(old.is_some());
        self.dirty
            .policies
            .insert(super::peer_auth::static_strict(&self.config.root_namespace).key());
        self.dirty
            .policies
            .insert(converted_key(&key.namespace, &key.name));
        let for_all = old
            .into_iter()
            .chain(new)
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
            for policy in old.into_iter().chain(new) {
                self.mark_selected(&key.namespace, policy.selector.as_ref());
            }
            self.mark_service_entries(&key.namespace);
        }
    }

    pub(super) fn any_peer_auth(&self) -> bool {
        self.peer_auth_count > 0
    }

    /// Renders what is marked and tells which records changed.
    pub fn flush(&mut self) -> Delta {
        self.render_dirty()
    }
}

/// Name of the policy made for a PeerAuthentication.
pub(super) fn converted_key(namespace: &ArcStr, name: &ArcStr) -> PolicyKey {
    PolicyKey {
        namespace: namespace.clone(),
        name: arcstr::format!("{}{name}", super::peer_auth::CONVERTED),
    }
}

fn replace<V>(map: &mut BTreeMap<ArcStr, V>, name: &ArcStr, new: Option<V>) -> Option<V> {
    match new {
        Some(value) => map.insert(name.clone(), value),
        None => map.remove(name),
    }
}

fn read_namespace(namespace: &Namespace) -> Input {
    let metadata = &namespace.metadata;
    let distribution = metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(labels::TRAFFIC_DISTRIBUTION));
    let network = metadata
        .labels
        .as_ref()
        .and_then(|all| all.get(labels::NETWORK));
    Input::Namespace(
        distribution.cloned(),
        network.map(ArcStr::from).unwrap_or_default(),
    )
}

fn read_node(node: &Node) -> Locality {
    let label = |name: &str| {
        node.metadata
            .labels
            .as_ref()
            .and_then(|all| all.get(name))
            .map(ArcStr::from)
            .unwrap_or_default()
    };
    Locality {
        region: label(labels::REGION),
        zone: label(labels::ZONE),
        subzone: label(labels::SUBZONE),
    }
}
