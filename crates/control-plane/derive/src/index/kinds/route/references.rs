//! Services that routes name, as they are now.

use ambit_k8s_api::{Kind, ObjectKey, Service, gateway};
use ambit_model::{ArcStr, NamespacedHostname};

use super::{RouteInput, service_kind};
use crate::{
    index::Index,
    problem::{FieldError, Note},
};

/// A service that something goes to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reference {
    /// The object; an error if it cannot be used.
    target: Result<ObjectKey, ArcStr>,
    pub(super) port: u16,
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
        let is_service = service_kind(group, kind) == Some(Kind::Service);
        let (target, port) = match from.port {
            Some(number) if is_service => {
                let number = port(number)
                    .map_err(|message| FieldError::new(format!("{at}.port"), message))?;
                let namespace = from.namespace.as_deref().unwrap_or(namespace);
                let target = ObjectKey::new(Kind::Service, namespace, from.name.as_str());
                (Ok(target), number)
            }
            None if is_service => {
                let message = format!("is needed: {otherwise}");
                notes.push(Note::new(format!("{at}.port"), message));
                (Err(arcstr::literal!("a backend without a port")), 0)
            }
            _ => {
                let message = format!("{kind} is not supported: {otherwise}");
                notes.push(Note::new(format!("{at}.kind"), message));
                (Err(arcstr::format!("a backend of the kind {kind}")), 0)
            }
        };
        Ok(Self { target, port })
    }

    /// The object that it is.
    pub(super) fn target(&self) -> Option<&ObjectKey> {
        self.target.as_ref().ok()
    }

    /// The service that it is.
    pub(super) fn find(
        &self,
        index: &Index,
        route: &RouteInput,
    ) -> Result<NamespacedHostname, Unresolved> {
        let unresolved = |reason, text| Unresolved { reason, text };
        let target = self.target.as_ref();
        let target = target.map_err(|why| unresolved("InvalidKind", why.clone()))?;
        // Before anything is said of what is there.
        let is_parent = route.parents.iter().any(|one| one.target == *target);
        let from = (route.kind, route.name.namespace.as_str());
        if !is_parent && !index.may_lead_to(from, target) {
            let text = arcstr::format!(
                "no ReferenceGrant of the namespace lets {} of {} lead to {target}",
                from.0,
                from.1
            );
            return Err(unresolved("RefNotPermitted", text));
        }
        let missing = |text| unresolved("BackendNotFound", text);
        let service = index.get::<Service>(target);
        let service = service.ok_or_else(|| missing(arcstr::format!("there is no {target}")))?;
        let mut ports = service.ports.iter();
        if !ports.any(|one| one.is_tcp && one.port == self.port) {
            let port = self.port;
            return Err(missing(arcstr::format!("{target} has no port {port}")));
        }
        let host = service.hostname(&index.config.cluster_domain);
        Ok(NamespacedHostname::new(target.namespace.clone(), host))
    }
}

/// A number as a port.
pub(super) fn port(number: i32) -> Result<u16, String> {
    u16::try_from(number)
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| format!("{number} is not a port, 1 to 65535"))
}
