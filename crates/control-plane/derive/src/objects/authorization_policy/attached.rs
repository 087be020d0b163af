//! AuthorizationPolicies attached to waypoints or services by `targetRefs`, which waypoints enforce.

use ambit_k8s_api::{AuthorizationPolicy, labels};
use ambit_model::{ArcStr, HttpPolicy};

use crate::{
    config::MeshConfig,
    objects::{
        authorization_policy::{http, metadata::namespace_of},
        targets::{PolicyTargets, target_references},
    },
    problem::{FieldError, Note},
};

/// Waypoint policy, with the objects that it is attached to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AttachedPolicy {
    pub(crate) targets: PolicyTargets,
    pub(crate) policy: HttpPolicy,
    /// Name of the authorization provider of a CUSTOM policy.
    pub(crate) provider: Option<ArcStr>,
    /// Name of the layer 4 policy that this policy is the waypoint's copy of, by its annotation.
    pub(crate) migrated_from: Option<ArcStr>,
}

impl AttachedPolicy {
    pub(crate) fn read(
        policy: &AuthorizationPolicy,
        config: &MeshConfig,
        notes: &mut Vec<Note>,
    ) -> Result<Self, FieldError> {
        let references =
            target_references(policy.spec.target_ref.as_ref(), &policy.spec.target_refs);
        let targets = PolicyTargets::read(references, &namespace_of(policy), config)?;
        let annotations = policy.metadata.annotations.as_ref();
        let migrated_from = annotations.and_then(|all| all.get(labels::MIGRATED_FROM));
        let provider = http::provider(policy)?;
        let (policy, of_policy) = http::http_policy(policy)?;
        notes.extend(of_policy);
        Ok(Self {
            targets,
            policy,
            provider,
            migrated_from: migrated_from.map(|name| name.as_str().into()),
        })
    }

    /// Builds the fail-closed substitute, which denies all requests to every object that the targets may mean.
    pub(crate) fn substitute(policy: &AuthorizationPolicy, config: &MeshConfig) -> Option<Self> {
        let references =
            target_references(policy.spec.target_ref.as_ref(), &policy.spec.target_refs);
        Some(Self {
            targets: PolicyTargets::possible_targets(&references, &namespace_of(policy), config)?,
            policy: http::substitute(policy, "the policy cannot be used as it is written"),
            provider: None,
            migrated_from: None,
        })
    }
}
