//! Parsed JWT rule: the issuer, and the source of its keys.

use ambit_model::JwtRule;

use crate::objects::key_source::KeySource;

/// Parsed JWT rule of one issuer; its keys are fetched from `source`, if there is one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JwtRuleInput {
    pub(crate) rule: JwtRule,
    pub(crate) source: Option<KeySource>,
}
