//! Policies that are attached to waypoints, or to what waypoints serve: each waypoint that a policy concerns is
//! sent it, with what it concerns there.

use ambit_k8s_api::AuthorizationPolicy;
use ambit_model::{GatewayName, HttpPolicy};

use super::{http, namespace_of};
use crate::{
    MeshConfig,
    condition::Verdict,
    index::{
        Index,
        targets::{Targets, references},
    },
    problem::{FieldError, Note},
};

/// A policy with what it is attached to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attached {
    pub(crate) targets: Targets,
    policy: HttpPolicy,
}

impl Attached {
    pub(super) fn read(
        policy: &AuthorizationPolicy,
        config: &MeshConfig,
        notes: &mut Vec<Note>,
    ) -> Result<Self, FieldError> {
        let references = references(policy.spec.target_ref.as_ref(), &policy.spec.target_refs);
        let targets = Targets::read(references, &namespace_of(policy), config)?;
        let (policy, of_policy) = http::http_policy(policy)?;
        notes.extend(of_policy);
        Ok(Self { targets, policy })
    }

    /// Denies everything at those of its targets that can be understood.
    pub(super) fn substitute(policy: &AuthorizationPolicy, config: &MeshConfig) -> Self {
        let references = references(policy.spec.target_ref.as_ref(), &policy.spec.target_refs);
        Self {
            targets: Targets::understood(references, &namespace_of(policy), config),
            policy: http::substitute(policy, "the policy cannot be used as it is written"),
        }
    }

    /// What each waypoint is sent.
    pub(super) fn render(&self, index: &Index) -> Vec<(GatewayName, HttpPolicy)> {
        let waypoints = self.targets.concerned(index).into_iter();
        let policy = |(gateway, concerned): (_, crate::index::targets::Concerned)| {
            let policy = HttpPolicy {
                for_gateway: concerned.for_gateway,
                services: concerned.services,
                ..self.policy.clone()
            };
            (gateway, policy)
        };
        waypoints.map(policy).collect()
    }

    /// At which waypoints it is in force.
    pub(super) fn verdict(&self, index: &Index) -> Verdict {
        self.targets.verdict(index, "policy", "enforced")
    }
}
