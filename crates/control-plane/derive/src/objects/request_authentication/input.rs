//! A rule as it is understood: the issuer, and the source of its keys.

use ambit_model::JwtRule;

use crate::objects::key_source::KeySource;

/// One issuer; its keys come from `source`, if there is one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RuleInput {
    pub(crate) rule: JwtRule,
    pub(crate) source: Option<KeySource>,
}
