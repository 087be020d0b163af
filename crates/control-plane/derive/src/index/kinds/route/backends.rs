//! Where the requests or connections of a rule go: services, as they are now.

use ambit_k8s_api::gateway;

use super::{filters::FilterInput, references::Reference};
use crate::problem::{FieldError, Note};

/// One destination.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BackendInput {
    pub(super) to: Reference,
    pub(super) weight: u32,
    pub(super) filters: Vec<FilterInput>,
}

/// What a destination has a share of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// Requests.
    Requests,
    /// Connections.
    Connections,
}

impl Share {
    /// What becomes of it where there is no destination.
    pub(super) fn refused(self) -> &'static str {
        match self {
            Self::Requests => "its share of requests is answered with an error",
            Self::Connections => "its share of connections is refused",
        }
    }
}

impl BackendInput {
    /// Reads one; what cannot be used is noted.
    pub(super) fn read(
        from: &gateway::HttpBackendRef,
        namespace: &str,
        (at, share): (&str, Share),
        filters: Vec<FilterInput>,
        notes: &mut Vec<Note>,
    ) -> Result<Self, FieldError> {
        let weight = from.weight.unwrap_or(1);
        let weight = u32::try_from(weight).map_err(|_| {
            FieldError::new(format!("{at}.weight"), format!("{weight} is less than 0"))
        })?;
        let reference = gateway::BackendReference {
            group: from.group.clone(),
            kind: from.kind.clone(),
            namespace: from.namespace.clone(),
            name: from.name.clone(),
            port: from.port,
            ..gateway::BackendReference::default()
        };
        Ok(Self {
            to: Reference::read(&reference, namespace, at, share.refused(), notes)?,
            weight,
            filters,
        })
    }
}
