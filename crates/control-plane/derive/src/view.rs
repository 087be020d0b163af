//! View of the mesh: parsed objects and their relations, from which records and conditions are rendered. Rendering only
//! reads the view; it cannot mark, report or publish anything. Each module answers the queries on one subject.

pub(crate) mod addresses;
pub(crate) mod attachment;
pub(crate) mod bound;
pub(crate) mod canary;
pub(crate) mod discovery;
pub(crate) mod enforcement_targets;
pub(crate) mod exports;
pub(crate) mod foreign;
pub(crate) mod foreign_proxies;
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
        key_set_state::KeySetState,
        references::References,
        workload_waypoints::{PolicyScope, WaypointsByWorkload},
    },
};

/// Parsed objects of the mesh, with their relations.
#[derive(Debug)]
pub struct MeshView {
    pub(crate) config: MeshConfig,
    /// Name of the cluster's network.
    pub(crate) network: ArcStr,
    pub(crate) namespaces: HashMap<ArcStr, Objects>,
    /// References between objects, by the referenced name.
    pub(crate) references: References,
    pub(crate) addresses: Addresses,
    /// Addresses of the API server and of nodes.
    pub(crate) cluster_addresses: ClusterAddresses,
    /// Revisions of the mesh's control planes.
    pub(crate) revisions: Revisions,
    /// Namespaces that `discoverySelectors` select.
    pub(crate) discovery: Discovery,
    /// Pods of node proxies of other implementations, such as ztunnel, by node.
    pub(crate) foreign_proxies: BTreeMap<ArcStr, BTreeSet<ObjectKey>>,
    /// Results of fetching key sets and trust bundles.
    pub(crate) key_sets: HashMap<KeySource, KeySetState>,
    /// Services, with the waypoints of their endpoints.
    pub(crate) service_waypoints: WaypointsByWorkload<NamespacedHostname>,
    /// Layer 4 policies, with the waypoints of the pods that they apply to.
    pub(crate) policy_waypoints: WaypointsByWorkload<PolicyScope>,
    pub(crate) instances: Instances,
    /// Waypoints that have been ready, and for each other waypoint whether it binds objects nevertheless.
    pub(crate) introductions: Introductions,
}

impl MeshView {
    /// Returns a view without objects.
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
            service_waypoints: WaypointsByWorkload::default(),
            policy_waypoints: WaypointsByWorkload::default(),
            instances: Instances::default(),
            introductions: Introductions::default(),
        }
    }

    /// Returns the parsed form of an object.
    pub(crate) fn get<K: Stored>(&self, key: &ObjectKey) -> Option<&K::Input> {
        self.objects(&key.namespace)?
            .all_of_kind::<K>()
            .get(&key.name)
    }

    /// Returns the objects of a namespace, unless `discoverySelectors` exclude it.
    pub(crate) fn objects(&self, namespace: &str) -> Option<&Objects> {
        let objects = self.namespaces.get(namespace);
        objects.filter(|_| !self.is_excluded(namespace))
    }

    /// Returns the addresses of the API server and of nodes, which waypoints never call on behalf of objects.
    pub fn cluster_addresses(&self) -> BTreeSet<IpAddr> {
        self.cluster_addresses.all()
    }

    /// Returns the objects of all namespaces that `discoverySelectors` do not exclude.
    pub(crate) fn all_objects(&self) -> impl Iterator<Item = (&ArcStr, &Objects)> {
        let namespaces = self.namespaces.iter();
        namespaces.filter(|(namespace, _)| !self.is_excluded(namespace))
    }
}
