//! Namespace and annotations of an AuthorizationPolicy.

use ambit_k8s_api::{AuthorizationPolicy, labels};
use ambit_model::ArcStr;

use crate::problem::FieldError;

pub(crate) fn namespace_of(policy: &AuthorizationPolicy) -> ArcStr {
    let namespace = policy.metadata.namespace.as_deref();
    namespace.unwrap_or("default").into()
}

/// Whether the policy's annotation requests a dry run: decisions are logged and not enforced.
pub(crate) fn is_dry_run(policy: &AuthorizationPolicy) -> Result<bool, FieldError> {
    let annotations = policy.metadata.annotations.as_ref();
    let annotation = annotations.and_then(|all| all.get(labels::DRY_RUN));
    match annotation.map(String::as_str) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => Err(FieldError::new(
            format!("metadata.annotations[{}]", labels::DRY_RUN),
            format!("{other:?} is neither true nor false"),
        )),
    }
}
