//! Parsing of request mirrors.

use ambit_k8s_api::gateway::HttpRequestMirror;
use ambit_model::RequestFraction;

use crate::{
    objects::{route::references::ServiceReference, share},
    problem::{FieldError, Note},
};

/// Parsed mirror of a rule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MirrorInput {
    pub(crate) service: ServiceReference,
    pub(crate) share: RequestFraction,
}

impl MirrorInput {
    /// Parses a request mirror. An unusable service is noted.
    pub(crate) fn read(
        from: &HttpRequestMirror,
        namespace: &str,
        at: &str,
        notes: &mut Vec<Note>,
    ) -> Result<Self, FieldError> {
        let share = share::read(from.percent, from.fraction.as_ref(), at)?;
        let reference = &from.backend_ref;
        let at = format!("{at}.backendRef");
        let otherwise = "nothing is mirrored there";
        Ok(Self {
            service: ServiceReference::read(reference, namespace, &at, otherwise, notes)?,
            share,
        })
    }
}
