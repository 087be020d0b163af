//! Parsing of references to the services that routes send requests or connections to.

use ambit_k8s_api::{Kind, ObjectKey, gateway, is_dns_name};
use ambit_model::ArcStr;

use crate::problem::{FieldError, Note};

/// Returns the kind that `group` and `kind` of a reference to a service mean; `None` if they mean no service.
pub(crate) fn service_kind(group: &str, kind: &str) -> Option<Kind> {
    match (group, kind) {
        ("" | "core", "Service") => Some(Kind::Service),
        ("networking.istio.io", "ServiceEntry") => Some(Kind::ServiceEntry),
        _ => None,
    }
}

/// API group of Istio's networking kinds, such as ServiceEntry.
const ISTIO_NETWORKING_GROUP: &str = "networking.istio.io";

/// Parsed reference to a service that receives requests or connections.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServiceReference {
    /// Service that the reference names; the reason if the reference is invalid.
    pub(crate) target: Result<ServiceIdentifier, ArcStr>,
    /// Port of the service; if `None`, the service's only port, or the port that the client called.
    pub(crate) port: Option<u16>,
}

/// Name of a service: its object or its host.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ServiceIdentifier {
    /// Key of the Service or ServiceEntry.
    Object(ObjectKey),
    /// Host name that a Service or ServiceEntry declares.
    Host(ArcStr),
}

impl ServiceReference {
    /// Parses a reference to a service. An invalid one is noted, with its consequence (`otherwise`).
    pub(crate) fn read(
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
            (ISTIO_NETWORKING_GROUP, "Hostname") => parse_hostname_reference(from, at, notes)?,
            _ => service_kind(group, kind).map(|kind| {
                ServiceIdentifier::Object(ObjectKey::new(kind, namespace, from.name.as_str()))
            }),
        };
        let (target, port) = match (named, from.port) {
            (Some(named), Some(number)) => {
                let number = parse_port(number)
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

    /// Builds a reference to a host, or an invalid reference with the reason.
    pub(crate) fn to_host(host: Result<ArcStr, ArcStr>, port: Option<u16>) -> Self {
        Self {
            target: host.map(ServiceIdentifier::Host),
            port,
        }
    }

    /// Returns the name of the service; `None` if the reference is invalid.
    pub(crate) fn service_identifier(&self) -> Option<&ServiceIdentifier> {
        self.target.as_ref().ok()
    }
}

/// Returns the host of a reference of the kind `Hostname`; a namespace has no effect and is noted.
fn parse_hostname_reference(
    from: &gateway::BackendReference,
    at: &str,
    notes: &mut Vec<Note>,
) -> Result<Option<ServiceIdentifier>, FieldError> {
    let name = from.name.to_ascii_lowercase();
    if !is_dns_name(&name, 253) {
        let message = format!("{:?} is not a host name", from.name);
        return Err(FieldError::new(format!("{at}.name"), message));
    }
    if from.namespace.is_some() {
        let message = "has no effect on a Hostname";
        notes.push(Note::new(format!("{at}.namespace"), message));
    }
    Ok(Some(ServiceIdentifier::Host(name.into())))
}

/// Validates a port number.
pub(crate) fn parse_port(number: i32) -> Result<u16, String> {
    u16::try_from(number)
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| format!("{number} is not a port, 1 to 65535"))
}
