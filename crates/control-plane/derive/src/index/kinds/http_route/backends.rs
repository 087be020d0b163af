//! Where the requests of a rule go.

use ambit_k8s_api::gateway;

use super::{filters::FilterInput, references::Reference};
use crate::problem::{FieldError, Note};

/// One destination.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BackendInput {
    pub(super) to: Reference,
    pub(super) weight: u32,
    pub(super) filters: Vec<FilterInput>,
}

impl BackendInput {
    /// Reads one; what cannot be used is noted.
    pub(super) fn read(
        from: &gateway::HttpBackendRef,
        namespace: &str,
        at: &str,
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
        let otherwise = "its share of requests is answered with 500";
        Ok(Self {
            to: Reference::read(&reference, namespace, at, otherwise, notes)?,
            weight,
            filters,
        })
    }
}
