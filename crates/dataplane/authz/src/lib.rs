//! L4 authorization: which policy decides a connection, and why.
//!
//! [`PolicySet`] holds the policies; [`PolicySet::evaluate`] decides, and [`PolicySet::explain`] reports
//! the outcome of every policy that applies. Pure: no IO, no time, no randomness.
#![forbid(unsafe_code)]

mod candidates;
mod connection;
mod evaluate;
mod explain;
mod matching;
mod set;

pub use connection::Connection;
pub use evaluate::{Decision, DryRun, Why};
pub use explain::{Explanation, Outcome, PolicyEvaluation};
pub use matching::{matches_policy, matching_rule};
pub use set::{Affects, MissingPolicies, PolicySet};

#[cfg(test)]
mod tests;
