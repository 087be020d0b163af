//! Policies of layer 7, as waypoints evaluate them.

use ambit_k8s_api::AuthorizationPolicy;
use ambit_model::{HttpAction, HttpPolicy, HttpRule, PolicyKey};

use super::namespace_of;
use crate::{MeshConfig, problem::FieldError};

/// The policy, but for what it is attached to. Attributes of layer 7 are not read yet: it denies all that it is
/// attached to.
pub(super) fn http_policy(
    policy: &AuthorizationPolicy,
    _config: &MeshConfig,
) -> Result<HttpPolicy, FieldError> {
    Ok(substitute(policy, "policies of layer 7 are not read"))
}

/// Denies all that it is attached to.
pub(super) fn substitute(policy: &AuthorizationPolicy, why: &str) -> HttpPolicy {
    HttpPolicy {
        key: PolicyKey {
            namespace: namespace_of(policy),
            name: policy.metadata.name.as_deref().unwrap_or_default().into(),
        },
        action: HttpAction::Deny,
        rules: vec![HttpRule::default()],
        not_understood: Some(why.into()),
        ..HttpPolicy::default()
    }
}
