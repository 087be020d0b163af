//! Visibility of a ServiceEntry's hosts: the namespaces in its `exportTo`, as far as the mesh's administrator allows
//! (`meshConfig.defaultServiceExportTo`), but for names that are reserved.
//!
//! Without the administrator's setting, entries of the root namespace are seen by all namespaces and all others by
//! their own. The setting `["*"]` is Istio's meaning: an entry is seen by all unless it narrows that.

use ambit_k8s_api::{Namespace, Service};
use ambit_model::{ArcStr, Visibility};

use crate::{
    objects::{export::Export, service_entry::ServiceEntryInput},
    view::{
        MeshView,
        reserved::{Reserved, is_single_label, reserved, short_name_of},
    },
};

impl MeshView {
    /// The namespaces that see an entry.
    pub(crate) fn export_of(&self, entry: &ServiceEntryInput) -> Export {
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
    pub(crate) fn visibility(&self, entry: &ServiceEntryInput, host: &str) -> Option<Visibility> {
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
    pub(crate) fn reservation<'a>(
        &self,
        entry: &ServiceEntryInput,
        host: &'a str,
    ) -> Option<Reserved<'a>> {
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

/// The namespaces of which hosts would be short names.
pub(crate) fn short_names(hosts: &[ArcStr]) -> Vec<ArcStr> {
    let names = hosts.iter().filter_map(|host| short_name_of(host));
    names.map(ArcStr::from).collect()
}
