//! Services that routes name, as they are now.
//!
//! By an object: a Service, or a ServiceEntry that has one host. Or by a host (kind `Hostname` of Istio's group): of a
//! Service or ServiceEntry of the route's namespace, else the one that all namespaces see. A ServiceEntry of another
//! namespace that is exported to all may be a backend, as every client may call it; a Service of another namespace
//! needs a ReferenceGrant, whichever way it is named.

use ambit_k8s_api::{Kind, ObjectKey, Service, ServiceEntry, gateway, is_dns_name};
use ambit_model::{ArcStr, NamespacedHostname, Visibility};

use super::{AttachedRoute, declared_ports, service_kind};
use crate::{
    index::MeshView,
    problem::{FieldError, Note},
};

/// The group of Istio's kinds.
const ISTIO: &str = "networking.istio.io";

/// A service that something goes to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reference {
    /// An error if it cannot be used.
    target: Result<Named, ArcStr>,
    /// The only port of the service, or the one that is called, if `None`.
    pub(super) port: Option<u16>,
}

/// How a service is named.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Named {
    /// By its object.
    Object(ObjectKey),
    /// By its host.
    Host(ArcStr),
}

/// A service that nothing can go to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Unresolved {
    /// For a condition.
    pub(super) reason: &'static str,
    pub(super) text: ArcStr,
}

impl Reference {
    /// Reads one; what cannot be used is noted, with what happens otherwise.
    pub(super) fn read(
        from: &gateway::BackendReference,
        namespace: &str,
        at: &str,
        otherwise: &str,
        notes: &mut Vec<Note>,
    ) -> Result<Self, FieldError> {
        let group = from.group.as_deref().unwrap_or_default();
        let kind = from.kind.as_deref().unwrap_or("Service");
        let namespace = from.namespace.as_deref().unwrap_or(namespace);
        let named = match (group, kind) {
            (ISTIO, "Hostname") => host_name(from, at, notes)?,
            _ => service_kind(group, kind)
                .map(|kind| Named::Object(ObjectKey::new(kind, namespace, from.name.as_str()))),
        };
        let (target, port) = match (named, from.port) {
            (Some(named), Some(number)) => {
                let number = port(number)
                    .map_err(|message| FieldError::new(format!("{at}.port"), message))?;
                (Ok(named), Some(number))
            }
            (Some(_), None) => {
                let message = format!("is needed: {otherwise}");
                notes.push(Note::new(format!("{at}.port"), message));
                (Err(arcstr::literal!("a backend without a port")), None)
            }
            (None, _) => {
                let message = format!("{kind} is not supported: {otherwise}");
                notes.push(Note::new(format!("{at}.kind"), message));
                (Err(arcstr::format!("a backend of the kind {kind}")), None)
            }
        };
        Ok(Self { target, port })
    }

    /// Reference to a host; an error if it is no name.
    pub(super) fn to_host(host: Result<ArcStr, ArcStr>, port: Option<u16>) -> Self {
        Self {
            target: host.map(Named::Host),
            port,
        }
    }

    /// How it is named, if it can be used.
    pub(super) fn named(&self) -> Option<&Named> {
        self.target.as_ref().ok()
    }

    /// The service that it is, and its port, for requests to a parent of the route. A parent needs no grant for requests
    /// to itself; for requests to other parents it is a backend like any other.
    pub(super) fn find(
        &self,
        view: &MeshView,
        AttachedRoute {
            route,
            parent,
            port: called,
        }: AttachedRoute<'_>,
    ) -> Result<(NamespacedHostname, u16), Unresolved> {
        let unresolved = |reason, text| Unresolved { reason, text };
        let named = self.target.as_ref();
        let (key, host) = match named.map_err(|why| unresolved("InvalidKind", why.clone()))? {
            Named::Object(key) => (key, None),
            Named::Host(host) => {
                let found = view.record_seen_in(&route.name.namespace, host);
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
            Kind::Service => view.may_lead_to(from, key),
            _ => view.is_seen_in(from.1, key),
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

    /// Service and port of a record: of a reference that resolves to none, the port that it names.
    pub(super) fn parts(
        &self,
        found: Result<(NamespacedHostname, u16), Unresolved>,
    ) -> (Result<NamespacedHostname, Unresolved>, u16) {
        match found {
            Ok((service, port)) => (Ok(service), port),
            Err(why) => (Err(why), self.port.unwrap_or_default()),
        }
    }
}

/// The host that a reference names, which has no namespace.
fn host_name(
    from: &gateway::BackendReference,
    at: &str,
    notes: &mut Vec<Note>,
) -> Result<Option<Named>, FieldError> {
    let name = from.name.to_ascii_lowercase();
    if !is_dns_name(&name, 253) {
        let message = format!("{:?} is not a host name", from.name);
        return Err(FieldError::new(format!("{at}.name"), message));
    }
    if from.namespace.is_some() {
        let message = "has no effect on a Hostname";
        notes.push(Note::new(format!("{at}.namespace"), message));
    }
    Ok(Some(Named::Host(name.into())))
}

impl MeshView {
    /// Whether a namespace sees a ServiceEntry.
    fn is_seen_in(&self, namespace: &str, entry: &ObjectKey) -> bool {
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

    /// The host of a Service, or of a ServiceEntry that has one and makes the record of it.
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
        if !self.hosts_won(entry).any(|won| won == host) {
            return Err(arcstr::format!(
                "{key} is not the entry that {host} resolves to in its namespace"
            ));
        }
        Ok(host.clone())
    }
}

/// A number as a port.
pub(super) fn port(number: i32) -> Result<u16, String> {
    u16::try_from(number)
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| format!("{number} is not a port, 1 to 65535"))
}
