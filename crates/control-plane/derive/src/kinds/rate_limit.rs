//! Records and status conditions of RateLimits.

use ambit_k8s_api::{Kind, ObjectKey, RateLimit};
use ambit_model::{self as model, ArcStr, NamespacedHostname};

use crate::{
    condition::{ConditionContent, ConditionType, DerivedStatus, RATE_LIMIT_ACCEPTED},
    index::{Index, change::Change},
    kinds::kind::MeshKind,
    objects::{
        config_map::callee::host_of_service,
        rate_limit::{RateLimitInput, RateLimitService},
    },
    pod_directory::PodDirectory,
    relations::references::ReferenceKind,
    view::{MeshView, rendered::RenderedRecords},
};

impl RateLimitService {
    /// Resolves the rate-limit service. A service of another namespace needs a ReferenceGrant for RateLimits of
    /// `namespace`.
    fn resolve(&self, view: &MeshView, namespace: &str) -> Result<NamespacedHostname, String> {
        let object = &self.service_key;
        if !view.may_call_for((Kind::RateLimit, namespace), object) {
            let owner = &object.namespace;
            return Err(format!(
                "{object} is of another namespace; add a ReferenceGrant from RateLimit of {namespace} in {owner}"
            ));
        }
        view.resolve_callee(&self.qualified_name)
    }
}

impl MeshKind for RateLimit {
    const CONDITIONS: &'static [ConditionType] = &[RATE_LIMIT_ACCEPTED];

    fn on_change(index: &mut Index, change: &Change<'_, RateLimitInput>, _: &mut PodDirectory) {
        index.mark_object_stale(change.key.clone());
        let targets = |limit: Option<&RateLimitInput>| -> Vec<ObjectKey> {
            limit
                .map(|limit| limit.targets.0.clone())
                .unwrap_or_default()
        };
        let (old, new) = (targets(change.old), targets(change.new));
        index.update_policy_targets(change.key, old, new);
        let callee = |limit: Option<&RateLimitInput>| {
            let callee = limit.and_then(|limit| limit.rate_limit_service.as_ref());
            callee.map(|callee| host_of_service(&callee.qualified_name))
        };
        let (old, new) = (callee(change.old), callee(change.new));
        index
            .view
            .references
            .replace(ReferenceKind::CalledHost, change.key, old, new);
    }

    fn render(view: &MeshView, key: &ObjectKey, input: &RateLimitInput) -> RenderedRecords {
        let mut limit = input.limit.clone();
        if let (Some(global), Some(callee)) = (&mut limit.global, &input.rate_limit_service) {
            let found = callee.resolve(view, &key.namespace).map_err(ArcStr::from);
            global.target = found.map(|service| (service, callee.port));
        }
        let waypoints = input.targets.by_waypoint(view).into_iter();
        let records = waypoints.map(|(gateway, concerned)| {
            let limit = model::RateLimit {
                for_gateway: concerned.targets_gateway,
                services: concerned.services,
                ..limit.clone()
            };
            (gateway, limit)
        });
        RenderedRecords::from_waypoint_records(records)
    }

    fn derived_status(
        view: &MeshView,
        key: &ObjectKey,
        input: &RateLimitInput,
    ) -> Option<DerivedStatus> {
        let mut condition = if input.targets.0.is_empty() {
            ConditionContent {
                is_true: false,
                reason: "NoTargets",
                message: "without spec.targetRefs it limits nothing".to_owned(),
                needs_attention: true,
            }
        } else {
            input
                .targets
                .waypoints_condition(view, "rate limit", "enforced")
        };
        let missing = input.rate_limit_service.as_ref();
        let missing = missing.and_then(|callee| callee.resolve(view, &key.namespace).err());
        if let Some(missing) = missing {
            if condition.is_true {
                condition.reason = "PartiallyInvalid";
            }
            let consequence = match input.limit.fail_open {
                true => "requests pass without spec.global",
                false => "requests are refused",
            };
            condition.message = format!(
                "{}; spec.global.service: {missing}: {consequence}",
                condition.message
            );
            condition.needs_attention = true;
        }
        Some(DerivedStatus {
            condition: Some(condition),
            ..DerivedStatus::default()
        })
    }
}
