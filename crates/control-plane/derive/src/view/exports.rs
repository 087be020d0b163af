//! Visibility of the hosts of ServiceEntries: the namespaces in `exportTo`, limited by the administrator's setting
//! `meshConfig.defaultServiceExportTo`, and without reserved names.
//!
//! If the setting is unset, entries of the root namespace are visible in all namespaces, and other entries in their
//! own. The setting `["*"]` gives Istio's behaviour: an entry is visible in all namespaces unless its `exportTo` says
//! less.

use ambit_k8s_api::{Namespace, Service};
use ambit_model::{ArcStr, Visibility};

use crate::{
    objects::{export::ExportTo, service_entry::ServiceEntryInput},
    view::{
        MeshView,
        reserved::{ReservedHost, is_single_label, reservation_reason, short_name_of},
    },
};

impl MeshView {
    /// Returns the namespaces that an entry is visible in.
    pub(crate) fn exported_to(&self, entry: &ServiceEntryInput) -> ExportTo {
        let setting = self.settings().and_then(|settings| settings.default_export);
        if entry.namespace == self.config.root_namespace {
            return entry.export_to.or(setting).unwrap_or(ExportTo::All);
        }
        let default = setting.unwrap_or(ExportTo::OwnNamespace);
        let widest = default.max(ExportTo::OwnNamespace);
        entry
            .export_to
            .map_or(default, |requested| requested.min(widest))
    }

    /// Returns the visibility of one host of an entry; `None` if it is visible in no namespace.
    pub(crate) fn visibility(&self, entry: &ServiceEntryInput, host: &str) -> Option<Visibility> {
        if self.reservation(entry, host).is_some() {
            return None;
        }
        let is_of_root = entry.namespace == self.config.root_namespace;
        match self.exported_to(entry) {
            ExportTo::None => None,
            ExportTo::All if is_of_root || !is_single_label(host) => Some(Visibility::Public),
            ExportTo::All | ExportTo::OwnNamespace => Some(Visibility::Namespace),
        }
    }

    /// Returns the reason why an entry may not declare a host, if the host is reserved. Entries of the root namespace,
    /// which administrators write, may declare any host.
    pub(crate) fn reservation<'a>(
        &self,
        entry: &ServiceEntryInput,
        host: &'a str,
    ) -> Option<ReservedHost<'a>> {
        if entry.namespace == self.config.root_namespace {
            return None;
        }
        let domain = &self.config.cluster_domain;
        reservation_reason(host, &entry.namespace, domain, |namespace| {
            self.has_namespace(namespace)
        })
    }

    /// Whether a namespace exists: as an object, or because it has a Service, since manifests may omit the Namespace.
    fn has_namespace(&self, name: &str) -> bool {
        let of_cluster = self.objects("").map(|all| all.all_of_kind::<Namespace>());
        let services = self.objects(name).map(|all| all.all_of_kind::<Service>());
        let is_there = of_cluster.is_some_and(|all| all.contains_key(name));
        is_there && !self.is_excluded(name) || services.is_some_and(|all| !all.is_empty())
    }
}

/// Returns the namespaces for which one of the hosts is a short name of a Service (`NAME.NAMESPACE`).
pub(crate) fn short_names(hosts: &[ArcStr]) -> Vec<ArcStr> {
    let names = hosts.iter().filter_map(|host| short_name_of(host));
    names.map(ArcStr::from).collect()
}
