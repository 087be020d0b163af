//! A rule as it is understood: the issuer, and the source of its keys.

use ambit_model::JwtRule;

use crate::index::KeySource;

/// One issuer; its keys come from `source`, if there is one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RuleInput {
    pub(super) rule: JwtRule,
    pub(super) source: Option<KeySource>,
}
