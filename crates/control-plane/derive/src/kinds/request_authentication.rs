//! RequestAuthentications: JWT rules that waypoints enforce. Only objects with `targetRefs` have an effect, since node
//! proxies do not read requests.

use ambit_k8s_api::{ObjectKey, RequestAuthentication};
use ambit_model::{Authentication, JwtKeys, JwtRule};

use crate::{
    condition::{AUTHENTICATION_ACCEPTED, ConditionType, Standing, Verdict},
    index::{Index, change::Change},
    kinds::kind::MeshKind,
    objects::request_authentication::{AuthenticationInput, input::RuleInput},
    pod_directory::PodDirectory,
    relations::key_state::KeyState,
    view::{MeshView, rendered::Rendered},
};

impl MeshKind for RequestAuthentication {
    const CONDITIONS: &'static [ConditionType] = &[AUTHENTICATION_ACCEPTED];

    fn changed(index: &mut Index, change: &Change<'_, AuthenticationInput>, _: &mut PodDirectory) {
        let targets = |one: Option<&AuthenticationInput>| {
            one.map(|one| one.targets.0.clone()).unwrap_or_default()
        };
        let (old, new) = (targets(change.old), targets(change.new));
        index.attach_rule(change.key, old, new);
        index.mark(change.key.clone());
    }

    fn render(view: &MeshView, _: &ObjectKey, input: &AuthenticationInput) -> Rendered {
        let rules = input.rules.iter().map(|one| one.render(view));
        let authentication = Authentication {
            key: input.key.clone(),
            rules: rules.collect(),
            not_understood: input.not_understood.clone(),
            ..Authentication::default()
        };
        let waypoints = input.targets.concerned(view).into_iter();
        let waypoints = waypoints.map(|(gateway, concerned)| {
            let record = Authentication {
                for_gateway: concerned.for_gateway,
                services: concerned.services,
                ..authentication.clone()
            };
            (gateway, record)
        });
        Rendered::at_waypoints(waypoints)
    }

    fn standing(view: &MeshView, _: &ObjectKey, input: &AuthenticationInput) -> Option<Standing> {
        Some(Standing {
            verdict: Some(input.verdict(view)),
            ..Standing::default()
        })
    }

    fn is_in_force(input: &AuthenticationInput) -> bool {
        !input.targets.0.is_empty()
    }
}

impl AuthenticationInput {
    /// Builds the status condition: the waypoints that enforce the object, and key sets that cannot be fetched.
    fn verdict(&self, view: &MeshView) -> Verdict {
        if self.targets.0.is_empty() {
            return Verdict {
                is_true: false,
                reason: "NotAttached",
                message: "there are no targetRefs: tokens are read by waypoints alone, so the object has no effect"
                    .to_owned(),
                is_trouble: true,
            };
        }
        let mut verdict = self.targets.verdict(view, "policy", "enforced");
        let rules = self.rules.iter().enumerate();
        let troubles: Vec<_> = rules
            .filter_map(|(at, rule)| rule.trouble(view, at))
            .collect();
        if !troubles.is_empty() {
            if verdict.is_true {
                verdict.reason = "PartiallyInvalid";
            }
            verdict.message = format!("{}; {}", verdict.message, troubles.join("; "));
            verdict.is_trouble = true;
        }
        verdict
    }
}

impl RuleInput {
    fn render(&self, view: &MeshView) -> JwtRule {
        let Some(source) = &self.source else {
            return self.rule.clone();
        };
        let keys = match view.keys(source) {
            None => JwtKeys::Pending,
            Some(KeyState {
                keys: Some(keys), ..
            }) => JwtKeys::Known(keys.clone()),
            Some(KeyState { trouble, .. }) => {
                JwtKeys::Unavailable(trouble.clone().unwrap_or_default())
            }
        };
        JwtRule {
            keys,
            key_source: source.url.clone(),
            ..self.rule.clone()
        }
    }

    fn trouble(&self, view: &MeshView, at: usize) -> Option<String> {
        let source = self.source.as_ref()?;
        let KeyState { keys, trouble } = view.keys(source)?;
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
