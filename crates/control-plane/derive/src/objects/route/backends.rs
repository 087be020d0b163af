//! Parsing of backends: services that rules send requests or connections to.

use ambit_k8s_api::{ambit, gateway};
use ambit_model::ArcStr;

use crate::{
    objects::route::{filters::FilterInput, references::ServiceReference},
    problem::{FieldError, Note},
};

/// Parsed backend of a rule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BackendInput {
    pub(crate) service: ServiceReference,
    /// Subset of the service's endpoints (DestinationRule); all endpoints if `None`.
    pub(crate) subset: Option<ArcStr>,
    pub(crate) weight: u32,
    pub(crate) filters: Vec<FilterInput>,
}

/// Traffic that a rule distributes to its backends by weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightedTraffic {
    /// HTTP requests, of HTTPRoutes, GRPCRoutes and VirtualServices.
    Requests,
    /// TCP or TLS connections.
    Connections,
}

impl WeightedTraffic {
    /// Returns the text for notes on what happens to the traffic of an unusable backend.
    pub(crate) fn refusal_text(self) -> &'static str {
        match self {
            Self::Requests => "its share of requests is answered with an error",
            Self::Connections => "its share of connections is refused",
        }
    }
}

impl BackendInput {
    /// Parses a backend of a rule. Parts that cannot be used are noted.
    pub(crate) fn read(
        from: &gateway::HttpBackendRef,
        namespace: &str,
        (at, share): (&str, WeightedTraffic),
        filters: Vec<FilterInput>,
        notes: &mut Vec<Note>,
    ) -> Result<Self, FieldError> {
        let weight = from.weight.unwrap_or(1);
        let weight = u32::try_from(weight).map_err(|_| {
            FieldError::new(format!("{at}.weight"), format!("{weight} is less than 0"))
        })?;
        let mut reference = gateway::BackendReference {
            group: from.group.clone(),
            kind: from.kind.clone(),
            namespace: from.namespace.clone(),
            name: from.name.clone(),
            port: from.port,
            ..gateway::BackendReference::default()
        };
        let is_subset = from.group.as_deref() == Some(ambit::GROUP)
            && from.kind.as_deref() == Some(ambit::SUBSET_KIND);
        let mut subset = None;
        if is_subset && share == WeightedTraffic::Requests {
            let named = from.name.split_once('.');
            let (service, name) = named.filter(|(_, name)| !name.is_empty()).ok_or_else(|| {
                let message = format!("{:?} is not <Service>.<subset>", from.name);
                FieldError::new(format!("{at}.name"), message)
            })?;
            reference.group = None;
            reference.kind = None;
            service.clone_into(&mut reference.name);
            subset = Some(ArcStr::from(name));
        }
        Ok(Self {
            service: ServiceReference::read(
                &reference,
                namespace,
                at,
                share.refusal_text(),
                notes,
            )?,
            subset,
            weight,
            filters,
        })
    }
}
