//! The mesh as its objects describe it: the input of renderers, which cannot mark, report or publish anything. Each
//! file below answers the questions of one subject.

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

/// Inputs of all objects, with their relations.
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
    /// Namespaces that the mesh discovers.
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
    /// Waypoints that bind, and waypoints that do not bind yet.
    pub(crate) introductions: Introductions,
}

impl MeshView {
    /// Returns a mesh without objects.
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

    /// Returns the stored input of an object.
    pub(crate) fn get<K: Stored>(&self, key: &ObjectKey) -> Option<&K::Input> {
        self.objects(&key.namespace)?.all::<K>().get(&key.name)
    }

    /// Returns the objects of a namespace, unless the mesh leaves it out.
    pub(crate) fn objects(&self, namespace: &str) -> Option<&Objects> {
        let objects = self.namespaces.get(namespace);
        objects.filter(|_| !self.is_left_out(namespace))
    }

    /// Returns the addresses of the API server and of nodes: waypoints call none of these for an object.
    pub fn cluster_addresses(&self) -> BTreeSet<IpAddr> {
        self.cluster_addresses.all()
    }

    /// Returns the objects of all namespaces but those that the mesh leaves out.
    pub(crate) fn all_objects(&self) -> impl Iterator<Item = (&ArcStr, &Objects)> {
        let namespaces = self.namespaces.iter();
        namespaces.filter(|(namespace, _)| !self.is_left_out(namespace))
    }
}
