//! Services that waypoints call themselves: providers name them as `host` or `namespace/host`.

use std::collections::BTreeSet;

use ambit_k8s_api::{Kind, ObjectKey, Service, ServiceEntry};
use ambit_model::{ArcStr, NamespacedHostname};

use crate::index::{Index, kind::MeshKind};

/// The host in a provider's name of a service.
pub(crate) fn host(service: &str) -> ArcStr {
    let host = service.split_once('/').map_or(service, |(_, host)| host);
    host.to_ascii_lowercase().into()
}

impl Index {
    /// The service that a provider names. A waypoint learns of it and its endpoints when it is told of the name.
    ///
    /// # Errors
    /// With what is wrong, for people: there is none, or there are several and no namespace is given.
    pub(crate) fn callee(&self, service: &str) -> Result<NamespacedHostname, String> {
        let namespace = service.split_once('/').map(|(namespace, _)| namespace);
        let host = host(service);
        let declarers: Vec<&ObjectKey> = self
            .declarers(&host)
            .filter(|key| self.makes(key, &host))
            .filter(|key| namespace.is_none_or(|namespace| key.namespace == namespace))
            .collect();
        // Kubernetes' own come first, as for clients.
        let own = declarers.iter().find(|key| key.kind == Kind::Service);
        let namespaces: BTreeSet<&ArcStr> = match own {
            Some(own) => [&own.namespace].into(),
            None => declarers.iter().map(|key| &key.namespace).collect(),
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

    /// Whether an object has a record of a host that it declares.
    fn makes(&self, key: &ObjectKey, host: &ArcStr) -> bool {
        match key.kind {
            Kind::Service => {
                let service = self.get::<Service>(key);
                service.is_some_and(|one| Service::claim(one, host).is_some())
            }
            _ => {
                let entry = self.get::<ServiceEntry>(key);
                entry.is_some_and(|one| ServiceEntry::claim(one, host).is_some())
            }
        }
    }

    /// Those whose waypoints call a host: which service that is may be another now.
    pub(crate) fn mark_callers_of(&mut self, host: &ArcStr) {
        let callers: Vec<_> = self.callees.of(host).cloned().collect();
        for caller in callers {
            self.mark(caller);
        }
    }
}
