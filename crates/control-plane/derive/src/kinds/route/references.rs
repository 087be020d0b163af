//! Resolution of the services that routes refer to.
//!
//! A reference names an object: a Service, or a ServiceEntry with exactly one host. Or it names a host (kind `Hostname`
//! of Istio's group), of a Service or ServiceEntry of the route's namespace, else the one visible in all namespaces. A
//! ServiceEntry of another namespace that is exported to all namespaces may be a backend, since every client may call
//! it; a Service of another namespace needs a ReferenceGrant, by whichever name.

use ambit_k8s_api::{Kind, ObjectKey, Service, ServiceEntry};
use ambit_model::{ArcStr, NamespacedHostname, Visibility};

use crate::{
    kinds::route::{attached::AttachedRoute, ports::declared_ports},
    objects::route::references::{ServiceIdentifier, ServiceReference},
    view::MeshView,
};

/// Reason why a reference of a route cannot be resolved.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct UnresolvedReference {
    /// Reason of the status condition.
    pub(crate) reason: &'static str,
    pub(crate) text: ArcStr,
}

impl ServiceReference {
    /// Resolves the reference to a service and port, for requests to a parent of the route. A parent needs no grant as
    /// backend of requests to itself; for requests to other parents it needs one like any other backend.
    pub(crate) fn resolve(
        &self,
        view: &MeshView,
        AttachedRoute {
            route,
            parent,
            port: called,
        }: AttachedRoute<'_>,
    ) -> Result<(NamespacedHostname, u16), UnresolvedReference> {
        let unresolved = |reason, text| UnresolvedReference { reason, text };
        let named = self.target.as_ref();
        let (key, host) = match named.map_err(|why| unresolved("InvalidKind", why.clone()))? {
            ServiceIdentifier::Object(key) => (key, None),
            ServiceIdentifier::Host(host) => {
                let found = view.host_owner_in(&route.name.namespace, host);
                let found = found.ok_or_else(|| {
                    let text = arcstr::format!(
                        "{} sees no service with the host {host}",
                        route.name.namespace
                    );
                    unresolved("BackendNotFound", text)
                });
                (found?, Some(host))
            }
        };
        // Before any statement about existing objects.
        let from = (route.kind, route.name.namespace.as_str());
        let is_granted = || match key.kind {
            Kind::Service => view.may_use_backend(from, key),
            _ => view.is_visible_in(from.1, key),
        };
        if key != parent && !is_granted() {
            let why = match key.kind {
                Kind::Service => "no ReferenceGrant of the namespace lets",
                _ => "it is not exported to all namespaces, which would let",
            };
            let text = arcstr::format!("{why} {} of {} refer to {key}", from.0, from.1);
            return Err(unresolved("RefNotPermitted", text));
        }
        let missing = |text| unresolved("BackendNotFound", text);
        let host = match host {
            Some(host) => Ok(host.clone()),
            None => view.only_host_of(key),
        };
        let host = host.map_err(missing)?;
        let ports = declared_ports(view, key).unwrap_or_default();
        let has = |number: u16| ports.iter().any(|(_, port, _)| *port == number);
        let port = match (self.port, ports.as_slice(), called) {
            (Some(port), ..) => port,
            (None, [(_, port, _)], _) => *port,
            (None, _, Some(called)) => called,
            (None, _, None) => {
                let text = arcstr::format!("{key} has several ports, and none is named");
                return Err(missing(text));
            }
        };
        if !has(port) {
            return Err(missing(arcstr::format!("{key} has no port {port}")));
        }
        Ok((NamespacedHostname::new(key.namespace.clone(), host), port))
    }

    /// Splits the result of resolving the reference into service and port; for an unresolved reference, the port that
    /// the reference names.
    pub(crate) fn split_resolved(
        &self,
        found: Result<(NamespacedHostname, u16), UnresolvedReference>,
    ) -> (Result<NamespacedHostname, UnresolvedReference>, u16) {
        match found {
            Ok((service, port)) => (Ok(service), port),
            Err(why) => (Err(why), self.port.unwrap_or_default()),
        }
    }
}

impl MeshView {
    /// Whether all hosts of a ServiceEntry are visible in a namespace.
    fn is_visible_in(&self, namespace: &str, entry: &ObjectKey) -> bool {
        let found = self.get::<ServiceEntry>(entry);
        found.is_some_and(|found| {
            let sees = |host: &ArcStr| {
                let visibility = self.visibility(found, host);
                visibility.is_some_and(|visibility| {
                    visibility == Visibility::Public || entry.namespace == namespace
                })
            };
            found.hosts.iter().all(sees)
        })
    }

    /// Returns the host of a Service, or of a ServiceEntry that has exactly one and the highest precedence for it.
    fn only_host_of(&self, key: &ObjectKey) -> Result<ArcStr, ArcStr> {
        let missing = || arcstr::format!("there is no {key}");
        if key.kind == Kind::Service {
            let service = self.get::<Service>(key).ok_or_else(missing)?;
            return Ok(service.hostname(&self.config.cluster_domain));
        }
        let entry = self.get::<ServiceEntry>(key).ok_or_else(missing)?;
        let [host] = entry.hosts.as_slice() else {
            return Err(arcstr::format!(
                "{key} has several hosts: one is named by the kind Hostname"
            ));
        };
        if !self.owned_hosts(entry).any(|won| won == host) {
            return Err(arcstr::format!(
                "{key} is not the entry that {host} resolves to in its namespace"
            ));
        }
        Ok(host.clone())
    }
}
