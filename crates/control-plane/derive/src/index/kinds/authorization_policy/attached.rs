//! Policies that are attached to waypoints, or to what waypoints serve: each waypoint that a policy concerns is
//! sent it, with what it concerns there.

use std::sync::Arc;

use ambit_k8s_api::{AuthorizationPolicy, labels};
use ambit_model::{ArcStr, GatewayName, HttpPolicy};

use super::{connections, http, metadata::namespace_of};
use crate::{
    MeshConfig,
    condition::Verdict,
    index::{
        MeshView,
        targets::{Concerned, Targets, references},
    },
    problem::{FieldError, Note},
};

/// A policy with what it is attached to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attached {
    pub(crate) targets: Targets,
    pub(super) policy: HttpPolicy,
    /// Name of the authorization provider of a CUSTOM policy.
    pub(super) provider: Option<ArcStr>,
    /// Name of the layer 4 policy of which this is the waypoint's copy.
    pub(super) migrated_from: Option<ArcStr>,
}

impl Attached {
    pub(super) fn read(
        policy: &AuthorizationPolicy,
        config: &MeshConfig,
        notes: &mut Vec<Note>,
    ) -> Result<Self, FieldError> {
        let references = references(policy.spec.target_ref.as_ref(), &policy.spec.target_refs);
        let targets = Targets::read(references, &namespace_of(policy), config)?;
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

    /// Denies everything at what its targets may mean.
    pub(super) fn substitute(policy: &AuthorizationPolicy, config: &MeshConfig) -> Option<Self> {
        let references = references(policy.spec.target_ref.as_ref(), &policy.spec.target_refs);
        Some(Self {
            targets: Targets::possible(&references, &namespace_of(policy), config)?,
            policy: http::substitute(policy, "the policy cannot be used as it is written"),
            provider: None,
            migrated_from: None,
        })
    }

    /// Policy of each waypoint.
    pub(super) fn render(&self, view: &MeshView) -> Vec<(GatewayName, HttpPolicy)> {
        let waypoints = self.targets.concerned(view).into_iter();
        let provider = self.provider.as_ref();
        let provider = provider.map(|name| Arc::new(view.authorizer(name)));
        let expanded = self.expanded(view);
        let policy = |(gateway, concerned): (_, Concerned)| {
            let policy = HttpPolicy {
                for_gateway: concerned.for_gateway,
                services: concerned.services,
                provider: provider.clone(),
                ..expanded.clone()
            };
            (gateway, policy)
        };
        waypoints.map(policy).collect()
    }

    /// The policy with principals under all names of the mesh's trust domain.
    pub(super) fn expanded(&self, view: &MeshView) -> HttpPolicy {
        let mut policy = self.policy.clone();
        let names = view.own_trust_domain_names();
        if !names.is_literal() {
            names.expand_in(&mut policy);
        }
        policy
    }

    /// Note on the reason why its provider is not called.
    pub(super) fn note(&self, view: &MeshView) -> Option<Note> {
        let provider = view.authorizer(self.provider.as_ref()?);
        let Err(why) = &provider.place else {
            return connections::note(view, &provider, &self.targets);
        };
        let message = format!("{why}: all that the policy is attached to is denied");
        Some(Note::new("spec.provider.name", message))
    }

    /// At which waypoints it is in force.
    pub(super) fn verdict(&self, view: &MeshView) -> Verdict {
        self.targets.verdict(view, "policy", "enforced")
    }
}
