//! Visibility of a ServiceEntry's hosts: the namespaces in its `exportTo`, as far as the mesh's administrator allows
//! (`meshConfig.defaultServiceExportTo`), but for names that are reserved.
//!
//! Without the administrator's setting, entries of the root namespace are seen by all namespaces and all others by
//! their own. The setting `["*"]` is Istio's meaning: an entry is seen by all unless it narrows that.

use ambit_k8s_api::{Kind, Namespace, ObjectKey, Service, ServiceEntry};
use ambit_model::{ArcStr, Visibility};

use super::{
    Index, MeshView,
    kind::MeshKind,
    references::Edge,
    reserved::{Reserved, is_single_label, reserved, short_name_of},
};

/// A service entry as understood.
type Entry = <ServiceEntry as MeshKind>::Input;

/// Namespaces that see an entry, from the fewest to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Export {
    /// Export to no namespace.
    None,
    /// Its own namespace.
    Own,
    /// Export to all namespaces.
    All,
}

impl MeshView {
    /// The namespaces that see an entry.
    pub(crate) fn export_of(&self, entry: &Entry) -> Export {
        let setting = self.settings().and_then(|settings| settings.default_export);
        if entry.namespace == self.config.root_namespace {
            return entry.export.or(setting).unwrap_or(Export::All);
        }
        let default = setting.unwrap_or(Export::Own);
        let widest = default.max(Export::Own);
        entry
            .export
            .map_or(default, |requested| requested.min(widest))
    }

    /// Visibility of a host of an entry; `None`: no namespace sees it.
    pub(crate) fn visibility(&self, entry: &Entry, host: &str) -> Option<Visibility> {
        if self.reservation(entry, host).is_some() {
            return None;
        }
        let is_of_root = entry.namespace == self.config.root_namespace;
        match self.export_of(entry) {
            Export::None => None,
            Export::All if is_of_root || !is_single_label(host) => Some(Visibility::Public),
            Export::All | Export::Own => Some(Visibility::Namespace),
        }
    }

    /// Why an entry may not have a host, if it may not. Entries of the root namespace, which are the administrator's,
    /// may have any.
    pub(crate) fn reservation<'a>(&self, entry: &Entry, host: &'a str) -> Option<Reserved<'a>> {
        if entry.namespace == self.config.root_namespace {
            return None;
        }
        let domain = &self.config.cluster_domain;
        reserved(host, &entry.namespace, domain, |namespace| {
            self.has_namespace(namespace)
        })
    }

    /// Whether a namespace exists: its object, or a Service in it where manifests leave the object out.
    fn has_namespace(&self, name: &str) -> bool {
        let of_cluster = self.objects("").map(|all| all.all::<Namespace>());
        let services = self.objects(name).map(|all| all.all::<Service>());
        let is_there = of_cluster.is_some_and(|all| all.contains_key(name));
        is_there && !self.is_left_out(name) || services.is_some_and(|all| !all.is_empty())
    }
}

impl Index {
    /// Marks the entries with hosts that are short names of Services of a namespace, which exists now, or no more.
    pub(crate) fn mark_short_names_of(&mut self, namespace: &ArcStr) {
        let entries: Vec<_> = self
            .view
            .references
            .of(Edge::ShortName, namespace)
            .cloned()
            .collect();
        self.mark_claims(entries);
    }

    /// Marks every entry: the administrator's setting has changed.
    pub(crate) fn mark_exports(&mut self) {
        let entries: Vec<_> = self
            .view
            .all_objects()
            .flat_map(|(namespace, objects)| {
                let names = objects.all::<ServiceEntry>().keys();
                names
                    .map(|name| ObjectKey::new(Kind::ServiceEntry, namespace.clone(), name.clone()))
            })
            .collect();
        self.mark_claims(entries);
    }

    /// Marks entries that may have other hosts than before, or are seen by other namespaces.
    fn mark_claims(&mut self, entries: Vec<ObjectKey>) {
        for key in entries {
            for host in self.view.hosts_of(&key) {
                self.mark_declarers(&host);
                self.mark_host(host);
            }
            self.mark_attached_to(&key);
        }
    }
}

/// The namespaces of which hosts would be short names.
pub(crate) fn short_names(hosts: &[ArcStr]) -> Vec<ArcStr> {
    let names = hosts.iter().filter_map(|host| short_name_of(host));
    names.map(ArcStr::from).collect()
}
