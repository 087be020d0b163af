//! Records and status conditions of RateLimits.

use ambit_k8s_api::{Kind, ObjectKey, RateLimit};
use ambit_model::{self as model, ArcStr, NamespacedHostname};

use crate::{
    condition::{ConditionType, LIMIT_ACCEPTED, Standing, Verdict},
    index::{Index, change::Change},
    kinds::kind::MeshKind,
    objects::{
        config_map::callee::host,
        rate_limit::{Callee, RateLimitInput},
    },
    pod_directory::PodDirectory,
    relations::references::Edge,
    view::{MeshView, rendered::Rendered},
};

impl Callee {
    /// Resolves the rate-limit service. A service of another namespace needs a ReferenceGrant for RateLimits of
    /// `namespace`.
    fn find(&self, view: &MeshView, namespace: &str) -> Result<NamespacedHostname, String> {
        let object = &self.object;
        if !view.may_call_for((Kind::RateLimit, namespace), object) {
            let owner = &object.namespace;
            return Err(format!(
                "{object} is of another namespace; add a ReferenceGrant from RateLimit of {namespace} in {owner}"
            ));
        }
        view.callee(&self.service)
    }
}

impl MeshKind for RateLimit {
    const CONDITIONS: &'static [ConditionType] = &[LIMIT_ACCEPTED];

    fn changed(index: &mut Index, change: &Change<'_, RateLimitInput>, _: &mut PodDirectory) {
        index.mark(change.key.clone());
        let targets = |limit: Option<&RateLimitInput>| -> Vec<ObjectKey> {
            limit
                .map(|limit| limit.targets.0.clone())
                .unwrap_or_default()
        };
        let (old, new) = (targets(change.old), targets(change.new));
        index.attach_rule(change.key, old, new);
        let callee = |limit: Option<&RateLimitInput>| {
            let callee = limit.and_then(|limit| limit.callee.as_ref());
            callee.map(|callee| host(&callee.service))
        };
        let (old, new) = (callee(change.old), callee(change.new));
        index
            .view
            .references
            .replace(Edge::Calls, change.key, old, new);
    }

    fn render(view: &MeshView, key: &ObjectKey, input: &RateLimitInput) -> Rendered {
        let mut limit = input.limit.clone();
        if let (Some(global), Some(callee)) = (&mut limit.global, &input.callee) {
            let found = callee.find(view, &key.namespace).map_err(ArcStr::from);
            global.place = found.map(|service| (service, callee.port));
        }
        let waypoints = input.targets.concerned(view).into_iter();
        let records = waypoints.map(|(gateway, concerned)| {
            let limit = model::RateLimit {
                for_gateway: concerned.for_gateway,
                services: concerned.services,
                ..limit.clone()
            };
            (gateway, limit)
        });
        Rendered::at_waypoints(records)
    }

    fn standing(view: &MeshView, key: &ObjectKey, input: &RateLimitInput) -> Option<Standing> {
        let mut verdict = if input.targets.0.is_empty() {
            Verdict {
                is_true: false,
                reason: "NoTargets",
                message: "without spec.targetRefs it limits nothing".to_owned(),
                is_trouble: true,
            }
        } else {
            input.targets.verdict(view, "rate limit", "enforced")
        };
        let missing = input.callee.as_ref();
        let missing = missing.and_then(|callee| callee.find(view, &key.namespace).err());
        if let Some(missing) = missing {
            if verdict.is_true {
                verdict.reason = "PartiallyInvalid";
            }
            let consequence = match input.limit.fail_open {
                true => "requests pass without spec.global",
                false => "requests are refused",
            };
            verdict.message = format!(
                "{}; spec.global.service: {missing}: {consequence}",
                verdict.message
            );
            verdict.is_trouble = true;
        }
        Some(Standing {
            verdict: Some(verdict),
            ..Standing::default()
        })
    }
}
