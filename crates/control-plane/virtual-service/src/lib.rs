//! VirtualServices (Istio's routes) converted to HTTPRoutes, which the mesh implements: for the
//! control plane as rules ([`RouteRule`]), for `ambit convert` as whole objects ([`convert_to_http_routes`]).
//!
//! A field without a counterpart is reported and never left out silently: it may decide which
//! requests a rule matches. Waypoints support more of VirtualServices than HTTPRoutes can express
//! (the order of rules, prefixes that end within a segment, namespaces of clients); only
//! [`convert_to_http_routes`] has these limits.
#![forbid(unsafe_code)]

mod convert;
mod filters;
mod hosts;
mod order;
mod rule;
mod values;

use std::fmt;

pub use convert::{Conversion, convert_to_http_routes};
pub use hosts::fully_qualified_name;
pub use rule::{DestinationTarget, RouteRule, RuleDestination, RuleMatch, RuleMirror};

/// Reserved gateway name by which VirtualServices refer to clients within the mesh.
const MESH_GATEWAY: &str = "mesh";

/// Returns whether `gateways`, of a VirtualService or of a match, include the clients within the
/// mesh, as an empty list does.
pub fn is_for_mesh(gateways: &[impl AsRef<str>]) -> bool {
    gateways.is_empty() || gateways.iter().any(|one| one.as_ref() == MESH_GATEWAY)
}

/// Problem with a field of a VirtualService, or a note about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldRemark {
    /// Path of the field in the spec.
    pub field: String,
    /// Problem, and how to solve it.
    pub message: String,
}

impl FieldRemark {
    pub(crate) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for FieldRemark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spec.{}: {}", self.field, self.message)
    }
}

#[cfg(test)]
mod tests;
