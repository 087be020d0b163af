//! Layer 4 authorization: decides whether a connection is allowed, and by which policy.
//!
//! [`PolicySet`] holds the policies; [`PolicySet::evaluate`] decides, and [`PolicySet::explain`] returns the evaluation
//! of every policy that applies. Layer 7 policies use [`Attributes`], too, to compare sources and addresses. No IO,
//! clock or randomness.
#![forbid(unsafe_code)]

mod attributes;
mod connection;
mod evaluate;
mod explain;
mod matching;
mod rule_index;
mod set;

pub use attributes::Attributes;
pub use connection::Connection;
pub use evaluate::{Decision, DecisionReason, DryRunMatch};
pub use explain::{Explanation, PolicyEvaluation, PolicyOutcome};
pub use matching::{matches_policy, matching_rule};
pub use set::{AffectedWorkloads, MissingPolicies, PolicySet};

#[cfg(test)]
mod tests;
