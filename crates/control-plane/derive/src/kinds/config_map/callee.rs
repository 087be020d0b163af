//! Services that waypoints call on their own: providers name them as `host` or `namespace/host`.

use std::collections::BTreeSet;

use ambit_k8s_api::{Kind, ObjectKey};
use ambit_model::{ArcStr, NamespacedHostname};

use crate::{
    index::Index, objects::config_map::callee::host_of_service,
    relations::references::ReferenceKind, view::MeshView,
};

impl MeshView {
    /// Resolves the service that a provider names; without a namespace, a service that is visible in the root
    /// namespace. A waypoint subscribes to the service and its endpoints when it receives the name.
    ///
    /// # Errors
    ///
    /// The reason, for messages: no such service exists, or several do and the name has no namespace.
    pub(crate) fn resolve_callee(&self, service: &str) -> Result<NamespacedHostname, String> {
        let namespace = service.split_once('/').map(|(namespace, _)| namespace);
        let host = host_of_service(service);
        let objects_declaring: Vec<&ObjectKey> = self
            .objects_declaring(&host)
            .filter(|key| match namespace {
                Some(namespace) => {
                    key.namespace == namespace && self.host_claim(key, &host).is_some()
                }
                None => self.is_visible_in_root_namespace(key, &host),
            })
            .collect();
        // Kubernetes' own come first, as for clients.
        let own = objects_declaring
            .iter()
            .find(|key| key.kind == Kind::Service);
        let namespaces: BTreeSet<&ArcStr> = match own {
            Some(own) => [&own.namespace].into(),
            None => objects_declaring.iter().map(|key| &key.namespace).collect(),
        };
        let mut namespaces = namespaces.into_iter();
        match (namespaces.next(), namespaces.next()) {
            (Some(namespace), None) => Ok(NamespacedHostname::new(namespace.clone(), host)),
            (None, _) => Err(format!("there is no service {service}")),
            (Some(one), Some(other)) => Err(format!(
                "{one} and {other} both have a service {service}: name one as {one}/{service}"
            )),
        }
    }

    /// Whether an object's record of a host is visible in the root namespace. The MeshConfig does not refer to services
    /// that are visible only in other namespaces.
    fn is_visible_in_root_namespace(&self, key: &ObjectKey, host: &ArcStr) -> bool {
        let claim = self.host_claim(key, host);
        claim.is_some_and(|claim| claim.is_public || key.namespace == self.config.root_namespace)
    }
}

impl Index {
    /// Marks as stale the objects on whose behalf waypoints call a host, since the host may now be another service.
    pub(crate) fn mark_host_callers_stale(&mut self, host: &ArcStr) {
        let callers: Vec<_> = self
            .view
            .references
            .referrers(ReferenceKind::CalledHost, host)
            .cloned()
            .collect();
        if callers.is_empty() {
            return;
        }
        self.mark_provider_policies_stale();
        // Providers of the mesh's settings are called for telemetry.
        if callers.iter().any(|caller| caller.kind == Kind::ConfigMap) {
            self.mark_all_telemetry_stale();
        }
        for caller in callers {
            self.mark_object_stale(caller);
        }
    }

    /// Marks as stale the policies that name an authorization provider.
    pub(crate) fn mark_provider_policies_stale(&mut self) {
        let users: Vec<_> = self
            .view
            .references
            .referenced_names(ReferenceKind::ExtensionProvider)
            .flat_map(|name: &ArcStr| {
                self.view
                    .references
                    .referrers(ReferenceKind::ExtensionProvider, name)
            })
            .cloned()
            .collect();
        for user in users {
            self.mark_object_stale(user);
        }
    }
}
