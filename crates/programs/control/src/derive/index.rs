//! The objects as understood, and what must be rendered anew when one changes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use ambit_k8s_api::{InvalidObject, Kind, Namespace, Node, Object, ObjectKey, labels};
use ambit_model::{
    ArcStr, Authorization, Locality, NamespacedHostname, PolicyKey, Workload, WorkloadUid,
};
use serde_json::Value;

use super::{
    Delta, MeshConfig, PodDirectory, ServiceRecord,
    entries::{ServiceEntryInput, WorkloadEntryInput},
    peer_auth::PeerAuthInput,
    pods::PodInput,
    policies::PolicyInput,
    services::ServiceInput,
    slices::SliceInput,
};
use crate::problems::{FieldError, Note, Problem, Severity};

mod addresses;
mod marks;
mod stand_in;

use addresses::Addresses;

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
    /// Policies for which something stands in, because no usable form of them is known.
    stand_ins: BTreeSet<ObjectKey>,
    pub(super) addresses: Addresses,
    problems: BTreeMap<ObjectKey, Vec<Problem>>,
    /// What of an object has no effect because of other objects.
    conflicts: BTreeMap<ObjectKey, Vec<Problem>>,
    /// Objects whose conflicts changed since they were last asked for.
    conflicts_changed: BTreeSet<ObjectKey>,
    /// Objects whose problems changed since they were last asked for.
    problems_changed: BTreeSet<ObjectKey>,
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
    /// An index without objects.
    pub fn new(config: MeshConfig) -> Self {
        Self {
            config,
            network: ArcStr::new(),
            namespaces: HashMap::new(),
            nodes: HashMap::new(),
            on_node: HashMap::new(),
            declares: HashMap::new(),
            peer_auth_count: 0,
            stand_ins: BTreeSet::new(),
            addresses: Addresses::default(),
            problems: BTreeMap::new(),
            conflicts: BTreeMap::new(),
            conflicts_changed: BTreeSet::new(),
            problems_changed: BTreeSet::new(),
            dirty: Dirty::default(),
            told: Told::default(),
        }
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
            Ok((input, notes)) => {
                self.stand_ins.remove(&key);
                let notes = notes.into_iter();
                let notes = notes.map(|note| problem(Severity::Warning, note));
                (Some(input), notes.collect())
            }
            Err(mut error) => {
                let stand_in = self.stand_in(object, &key);
                error.message += self.consequence(&key, stand_in.as_ref());
                let error = problem(Severity::Error, error);
                self.put_stand_in(&key, stand_in, pods);
                (None, vec![error])
            }
        };
        self.set_problems(&key, problems);
        if let Some(input) = input {
            self.put(&key, input, pods);
        }
    }

    /// An object is there, but cannot be read at all.
    pub fn refuse(
        &mut self,
        key: &ObjectKey,
        error: &InvalidObject,
        value: &Value,
        pods: &mut PodDirectory,
    ) {
        let stand_in = self.stand_in_for_unreadable(key, value);
        let consequence = self.consequence(key, stand_in.as_ref());
        let problem = Problem {
            severity: Severity::Error,
            object: key.clone(),
            field: error.field.clone(),
            message: format!("{}{consequence}", error.message),
            origin: None,
        };
        self.put_stand_in(key, stand_in, pods);
        self.set_problems(key, vec![problem]);
    }

    /// Puts what stands in for an unusable object in its place; nothing may be the right thing to.
    fn put_stand_in(&mut self, key: &ObjectKey, input: Option<Input>, pods: &mut PodDirectory) {
        if let Some(input) = input {
            self.stand_ins.insert(key.clone());
            self.put(key, input, pods);
        } else if self.stand_ins.remove(key) {
            self.put(key, Input::Nothing, pods);
        }
    }

    /// What an object that cannot be used leads to, as the end of a sentence.
    fn consequence(&self, key: &ObjectKey, stand_in: Option<&Input>) -> &'static str {
        match (stand_in, self.knows(key)) {
            (Some(_), _) => "; everything in its scope is refused until it is mended",
            (None, true) => "; what it said before stays in force",
            (None, false) => "; the object has no effect",
        }
    }

    /// An object is gone.
    pub fn delete(&mut self, key: &ObjectKey, pods: &mut PodDirectory) {
        self.stand_ins.remove(key);
        self.set_problems(key, Vec::new());
        self.put(key, Input::Nothing, pods);
    }

    /// What is wrong with objects now.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        let own = self.problems.values().flatten();
        own.chain(self.conflicts.values().flatten())
    }

    /// The problems of one object.
    pub fn problems_of(&self, key: &ObjectKey) -> Vec<Problem> {
        let own = self.problems.get(key).into_iter().flatten();
        let conflicts = self.conflicts.get(key).into_iter().flatten();
        own.chain(conflicts).cloned().collect()
    }

    /// Objects of which other parts have an effect since the last call, because of other objects.
    pub fn take_changed_conflicts(&mut self) -> BTreeSet<ObjectKey> {
        std::mem::take(&mut self.conflicts_changed)
    }

    pub(super) fn set_conflicts(&mut self, key: &ObjectKey, conflicts: Vec<Problem>) {
        let old = self.conflicts.get(key).map(Vec::as_slice);
        if old.unwrap_or_default() == conflicts {
            return;
        }
        for problem in &conflicts {
            tracing::warn!(%problem, "an object has less effect than it says");
        }
        self.problems_changed.insert(key.clone());
        self.conflicts_changed.insert(key.clone());
        if conflicts.is_empty() {
            self.conflicts.remove(key);
        } else {
            self.conflicts.insert(key.clone(), conflicts);
        }
    }

    /// Whether the problems of an object changed since they were last taken.
    pub fn has_new_problems(&self, key: &ObjectKey) -> bool {
        self.problems_changed.contains(key)
    }

    /// Whether anything of a policy is in force.
    pub fn is_in_force(&self, key: &ObjectKey) -> bool {
        self.namespaces
            .get(&key.namespace)
            .is_some_and(|objects| match key.kind {
                Kind::AuthorizationPolicy => objects
                    .policies
                    .get(&key.name)
                    .is_some_and(|policy| policy.sent.is_some()),
                Kind::PeerAuthentication => objects.peer_auths.contains_key(&key.name),
                _ => false,
            })
    }

    /// Objects whose problems changed since the last call.
    pub fn take_changed_problems(&mut self) -> BTreeSet<ObjectKey> {
        std::mem::take(&mut self.problems_changed)
    }

    fn set_problems(&mut self, key: &ObjectKey, problems: Vec<Problem>) {
        let old = if problems.is_empty() {
            if self.problems.remove(key).is_some() {
                self.problems_changed.insert(key.clone());
            }
            return;
        } else {
            self.problems.insert(key.clone(), problems.clone())
        };
        if old.as_ref() != Some(&problems) {
            self.problems_changed.insert(key.clone());
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
                let (input, notes) = ServiceEntryInput::read(entry, &self.config)?;
                (Input::ServiceEntry(input), notes)
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

    pub(super) fn any_peer_auth(&self) -> bool {
        self.peer_auth_count > 0
    }

    /// Renders what is marked and tells which records changed.
    pub fn flush(&mut self) -> Delta {
        self.render_dirty()
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
