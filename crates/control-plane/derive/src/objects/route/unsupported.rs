//! Values of routes that the Gateway API or Istio defines and this mesh does not support.

use ambit_model::ArcStr;

/// Reason of status conditions for values that the API defines and this mesh does not support.
pub(crate) const UNSUPPORTED_VALUE: &str = "UnsupportedValue";

/// Unsupported part of a rule, because of which the rule refuses its traffic.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct UnsupportedPart {
    /// Reason of the status condition.
    pub(crate) reason: &'static str,
    pub(crate) text: ArcStr,
}
