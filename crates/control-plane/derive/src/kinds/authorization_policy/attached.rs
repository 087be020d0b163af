//! Waypoint policies: each waypoint that a target resolves to receives the policy, with the targets that it serves.

use std::sync::Arc;

use ambit_model::{GatewayName, HttpPolicy};

use crate::{
    condition::ConditionContent,
    kinds::authorization_policy::connections,
    objects::authorization_policy::attached::AttachedPolicy,
    problem::Note,
    view::{MeshView, targets::WaypointTargets},
};

impl AttachedPolicy {
    /// Renders the policy for each waypoint that enforces it.
    pub(crate) fn render(&self, view: &MeshView) -> Vec<(GatewayName, HttpPolicy)> {
        let waypoints = self.targets.by_waypoint(view).into_iter();
        let provider = self.provider.as_ref();
        let provider = provider.map(|name| Arc::new(view.resolve_authorizer(name)));
        let expanded = self.with_expanded_principals(view);
        let policy = |(gateway, concerned): (_, WaypointTargets)| {
            let policy = HttpPolicy {
                for_gateway: concerned.targets_gateway,
                services: concerned.services,
                provider: provider.clone(),
                ..expanded.clone()
            };
            (gateway, policy)
        };
        waypoints.map(policy).collect()
    }

    /// Returns the policy with principals expanded to all names of the mesh's trust domain.
    pub(crate) fn with_expanded_principals(&self, view: &MeshView) -> HttpPolicy {
        let mut policy = self.policy.clone();
        let names = view.own_trust_domain_names();
        if !names.needs_no_expansion() {
            names.expand_in_policy(&mut policy);
        }
        policy
    }

    /// Builds the note on a CUSTOM policy whose provider cannot be called, for all requests or for connections that are
    /// not HTTP.
    pub(crate) fn provider_note(&self, view: &MeshView) -> Option<Note> {
        let provider = view.resolve_authorizer(self.provider.as_ref()?);
        let Err(why) = &provider.target else {
            return connections::refused_ports_note(view, &provider, &self.targets);
        };
        let message = format!("{why}: all that the policy is attached to is denied");
        Some(Note::new("spec.provider.name", message))
    }

    /// Builds the status condition, which lists the waypoints that enforce the policy.
    pub(crate) fn accepted_condition(&self, view: &MeshView) -> ConditionContent {
        self.targets.waypoints_condition(view, "policy", "enforced")
    }
}
