//! The mesh as its objects describe it: all that renderers read. They cannot mark, report or publish anything, which is
//! [`super::Index`]'s.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

use ambit_k8s_api::{ObjectKey, revisions::Revisions};
use ambit_model::{ArcStr, NamespacedHostname};

use super::{
    KeySource, KeyState, Maker,
    addresses::Addresses,
    cluster_addresses::ClusterAddresses,
    discovery::Discovery,
    foreign_proxies::ForeignProxies,
    instances::Instances,
    introduction::Introductions,
    kind::Rendered,
    kinds::{Objects, Stored, any_plaintext_refused, functions, static_strict},
    references::References,
    served::{PolicyScope, Served},
};
use crate::MeshConfig;

/// Objects as understood, with their relations.
#[derive(Debug)]
pub struct MeshView {
    pub(crate) config: MeshConfig,
    /// The cluster's network.
    pub(crate) network: ArcStr,
    pub(super) namespaces: HashMap<ArcStr, Objects>,
    /// References between objects, by their targets.
    pub(crate) references: References,
    pub(crate) addresses: Addresses,
    /// Addresses of the API server and of nodes.
    pub(crate) cluster_addresses: ClusterAddresses,
    /// Control planes of the mesh.
    pub(super) revisions: Revisions,
    /// Namespaces that are left out.
    pub(super) discovery: Discovery,
    /// Node proxies of other implementations, by node.
    pub(super) foreign_proxies: ForeignProxies,
    /// States of key sets that are fetched.
    pub(super) key_sets: HashMap<KeySource, KeyState>,
    /// Waypoints of services' endpoints.
    pub(super) served: Served<NamespacedHostname>,
    /// Waypoints of the pods that policies of node proxies apply to.
    pub(crate) behind: Served<PolicyScope>,
    pub(super) instances: Instances,
    /// Waypoints that bind, and those that wait.
    pub(super) introductions: Introductions,
}

impl MeshView {
    /// A mesh without objects.
    pub(super) fn new(config: MeshConfig) -> Self {
        Self {
            revisions: Revisions::new(&config.revision),
            config,
            network: ArcStr::new(),
            namespaces: HashMap::new(),
            references: References::default(),
            addresses: Addresses::default(),
            cluster_addresses: ClusterAddresses::default(),
            discovery: Discovery::default(),
            foreign_proxies: ForeignProxies::new(),
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

    /// Whether anything of a policy is in force.
    pub fn is_in_force(&self, key: &ObjectKey) -> bool {
        (functions(key.kind).is_in_force)(self, key)
    }

    /// Renders the records of a maker.
    pub(super) fn render(&self, maker: &Maker) -> Rendered {
        match maker {
            Maker::Object(key) => (functions(key.kind).render)(self, key),
            Maker::Host(host) => self.render_host(host),
            Maker::StaticStrict => Rendered {
                policies: any_plaintext_refused(self)
                    .then(|| static_strict(&self.config.root_namespace))
                    .into_iter()
                    .collect(),
                ..Rendered::default()
            },
        }
    }
}
