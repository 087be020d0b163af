//! The mesh as its objects describe it: all that renderers read. They cannot mark, report or publish anything, which is
//! [`super::Index`]'s.

pub(crate) mod addresses;
pub(crate) mod attachment;
pub(crate) mod bound;
pub(crate) mod canary;
pub(crate) mod discovery;
pub(crate) mod exports;
pub(crate) mod foreign;
pub(crate) mod foreign_proxies;
pub(crate) mod guarded;
pub(crate) mod hosts;
pub(crate) mod inbound_binding;
pub(crate) mod instances;
pub(crate) mod introduction;
pub(crate) mod key_sets;
pub(crate) mod narrower_hosts;
pub(crate) mod registry;
pub(crate) mod rendered;
pub(crate) mod reserved;
pub(crate) mod targets;
pub(crate) mod trust_domains;
pub(crate) mod waypoint_rules;
pub(crate) mod workloads;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use ambit_k8s_api::{ObjectKey, revisions::Revisions};
use ambit_model::{ArcStr, NamespacedHostname};

use crate::{
    config::MeshConfig,
    objects::{Objects, Stored, key_source::KeySource},
    relations::{
        addresses::Addresses,
        cluster_addresses::ClusterAddresses,
        discovery::Discovery,
        instances::Instances,
        introductions::Introductions,
        key_state::KeyState,
        references::References,
        served::{PolicyScope, Served},
    },
};

/// Objects as understood, with their relations.
#[derive(Debug)]
pub struct MeshView {
    pub(crate) config: MeshConfig,
    /// The cluster's network.
    pub(crate) network: ArcStr,
    pub(crate) namespaces: HashMap<ArcStr, Objects>,
    /// References between objects, by their targets.
    pub(crate) references: References,
    pub(crate) addresses: Addresses,
    /// Addresses of the API server and of nodes.
    pub(crate) cluster_addresses: ClusterAddresses,
    /// Control planes of the mesh.
    pub(crate) revisions: Revisions,
    /// Namespaces that are left out.
    pub(crate) discovery: Discovery,
    /// Node proxies of other implementations, by node.
    pub(crate) foreign_proxies: BTreeMap<ArcStr, BTreeSet<ObjectKey>>,
    /// States of key sets that are fetched.
    pub(crate) key_sets: HashMap<KeySource, KeyState>,
    /// Waypoints of services' endpoints.
    pub(crate) served: Served<NamespacedHostname>,
    /// Waypoints of the pods that policies of node proxies apply to.
    pub(crate) behind: Served<PolicyScope>,
    pub(crate) instances: Instances,
    /// Waypoints that bind, and those that wait.
    pub(crate) introductions: Introductions,
}

impl MeshView {
    /// A mesh without objects.
    pub(crate) fn new(config: MeshConfig) -> Self {
        Self {
            revisions: Revisions::new(&config.revision),
            config,
            network: ArcStr::new(),
            namespaces: HashMap::new(),
            references: References::default(),
            addresses: Addresses::default(),
            cluster_addresses: ClusterAddresses::default(),
            discovery: Discovery::default(),
            foreign_proxies: BTreeMap::new(),
            key_sets: HashMap::new(),
            served: Served::default(),
            behind: Served::default(),
            instances: Instances::default(),
            introductions: Introductions::default(),
        }
    }

    /// Input that an object was understood as.
    pub(crate) fn get<K: Stored>(&self, key: &ObjectKey) -> Option<&K::Input> {
        self.objects(&key.namespace)?.all::<K>().get(&key.name)
    }

    /// The objects of a namespace that is not left out.
    pub(crate) fn objects(&self, namespace: &str) -> Option<&Objects> {
        let objects = self.namespaces.get(namespace);
        objects.filter(|_| !self.is_left_out(namespace))
    }

    /// Addresses of the API server and of nodes: nothing that objects name is called there.
    pub fn cluster_addresses(&self) -> BTreeSet<IpAddr> {
        self.cluster_addresses.all()
    }

    /// All objects of namespaces that are not left out, by namespace.
    pub(crate) fn all_objects(&self) -> impl Iterator<Item = (&ArcStr, &Objects)> {
        let namespaces = self.namespaces.iter();
        namespaces.filter(|(namespace, _)| !self.is_left_out(namespace))
    }
}
