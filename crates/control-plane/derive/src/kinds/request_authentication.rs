//! RequestAuthentications: JWT rules that waypoints enforce. Only objects with `targetRefs` have an effect, since node
//! proxies do not read requests.

use ambit_k8s_api::{ObjectKey, RequestAuthentication};
use ambit_model::{Authentication, JwtKeys, JwtRule};

use crate::{
    condition::{AUTHENTICATION_ACCEPTED, ConditionContent, ConditionType, DerivedStatus},
    index::{Index, change::Change},
    kinds::kind::MeshKind,
    objects::request_authentication::{AuthenticationInput, input::JwtRuleInput},
    pod_directory::PodDirectory,
    relations::key_set_state::KeySetState,
    view::{MeshView, rendered::RenderedRecords},
};

impl MeshKind for RequestAuthentication {
    const CONDITIONS: &'static [ConditionType] = &[AUTHENTICATION_ACCEPTED];

    fn on_change(
        index: &mut Index,
        change: &Change<'_, AuthenticationInput>,
        _: &mut PodDirectory,
    ) {
        let targets = |one: Option<&AuthenticationInput>| {
            one.map(|one| one.targets.0.clone()).unwrap_or_default()
        };
        let (old, new) = (targets(change.old), targets(change.new));
        index.update_policy_targets(change.key, old, new);
        index.mark_object_stale(change.key.clone());
    }

    fn render(view: &MeshView, _: &ObjectKey, input: &AuthenticationInput) -> RenderedRecords {
        let rules = input.rules.iter().map(|one| one.render(view));
        let authentication = Authentication {
            key: input.key.clone(),
            rules: rules.collect(),
            not_understood: input.not_understood.clone(),
            ..Authentication::default()
        };
        let waypoints = input.targets.by_waypoint(view).into_iter();
        let waypoints = waypoints.map(|(gateway, concerned)| {
            let record = Authentication {
                for_gateway: concerned.targets_gateway,
                services: concerned.services,
                ..authentication.clone()
            };
            (gateway, record)
        });
        RenderedRecords::from_waypoint_records(waypoints)
    }

    fn derived_status(
        view: &MeshView,
        _: &ObjectKey,
        input: &AuthenticationInput,
    ) -> Option<DerivedStatus> {
        Some(DerivedStatus {
            condition: Some(input.accepted_condition(view)),
            ..DerivedStatus::default()
        })
    }

    fn is_in_force(input: &AuthenticationInput) -> bool {
        !input.targets.0.is_empty()
    }
}

impl AuthenticationInput {
    /// Builds the status condition: the waypoints that enforce the object, and key sets that cannot be fetched.
    fn accepted_condition(&self, view: &MeshView) -> ConditionContent {
        if self.targets.0.is_empty() {
            return ConditionContent {
                is_true: false,
                reason: "NotAttached",
                message: "there are no targetRefs: tokens are read by waypoints alone, so the object has no effect"
                    .to_owned(),
                needs_attention: true,
            };
        }
        let mut condition = self.targets.waypoints_condition(view, "policy", "enforced");
        let rules = self.rules.iter().enumerate();
        let troubles: Vec<_> = rules
            .filter_map(|(at, rule)| rule.key_error(view, at))
            .collect();
        if !troubles.is_empty() {
            if condition.is_true {
                condition.reason = "PartiallyInvalid";
            }
            condition.message = format!("{}; {}", condition.message, troubles.join("; "));
            condition.needs_attention = true;
        }
        condition
    }
}

impl JwtRuleInput {
    fn render(&self, view: &MeshView) -> JwtRule {
        let Some(source) = &self.source else {
            return self.rule.clone();
        };
        let keys = match view.keys(source) {
            None => JwtKeys::Pending,
            Some(KeySetState {
                keys: Some(keys), ..
            }) => JwtKeys::Known(keys.clone()),
            Some(KeySetState {
                last_error: trouble,
                ..
            }) => JwtKeys::Unavailable(trouble.clone().unwrap_or_default()),
        };
        JwtRule {
            keys,
            key_source: source.url.clone(),
            ..self.rule.clone()
        }
    }

    fn key_error(&self, view: &MeshView, at: usize) -> Option<String> {
        let source = self.source.as_ref()?;
        let KeySetState {
            keys,
            last_error: trouble,
        } = view.keys(source)?;
        let trouble = trouble.as_ref()?;
        let url = &source.url;
        let consequence = match keys {
            Some(_) => "those that were had last stay in force",
            None => "no token of this issuer is valid",
        };
        Some(format!(
            "spec.jwtRules[{at}]: the keys of {url} cannot be had ({trouble}): {consequence}"
        ))
    }
}
