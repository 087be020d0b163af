//! Request authentications: whose tokens waypoints take. Only those that are attached by `targetRefs` have an effect:
//! node proxies read no requests.

mod input;
mod rules;

use input::RuleInput;

use ambit_k8s_api::{
    ObjectKey, ObjectMeta, RequestAuthentication, istio::RequestAuthenticationSpec,
};
use ambit_model::{ArcStr, Authentication, JwtKeys, JwtRule, PolicyKey};
use serde_json::Value;

use crate::{
    MeshConfig, PodDirectory,
    condition::{AUTHENTICATION_ACCEPTED, ConditionType, Standing, Verdict},
    index::{
        Index, KeySource, KeyState, MeshView,
        kind::{Change, Extent, Followed, MeshKind, Read, Rendered},
        targets::{Targets, readable_references, references},
    },
    problem::FieldError,
};

impl Followed for RequestAuthentication {
    const EXTENT: Extent = Extent::Whole { labels: None };
}

/// An object as the mesh sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AuthenticationInput {
    targets: Targets,
    key: PolicyKey,
    rules: Vec<RuleInput>,
    not_understood: Option<ArcStr>,
}

impl AuthenticationInput {
    /// The key sets that it names by address.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &KeySource> {
        self.rules.iter().filter_map(|rule| rule.source.as_ref())
    }
}

impl MeshKind for RequestAuthentication {
    type Input = AuthenticationInput;

    const CONDITIONS: &'static [ConditionType] = &[AUTHENTICATION_ACCEPTED];

    fn read(&self, config: &MeshConfig) -> Result<Read<AuthenticationInput>, FieldError> {
        let mut notes = Vec::new();
        if self.spec.selector.is_some() && self.is_attached() {
            return Err(FieldError::new(
                "spec.selector",
                "cannot be given together with spec.targetRefs",
            ));
        }
        let key = key_of(self);
        let references = references(self.spec.target_ref.as_ref(), &self.spec.target_refs);
        let targets = Targets::read(references, &key.namespace, config)?;
        // Objects of the root namespace are the administrator's.
        let caller = (key.namespace != config.root_namespace).then(|| key.namespace.clone());
        let rules = rules::read(&self.spec.jwt_rules, caller.as_ref(), &mut notes)?;
        let input = AuthenticationInput {
            targets,
            key,
            rules,
            not_understood: None,
        };
        Ok(Read::of(Some(input), notes))
    }

    /// Refuses everything at what its targets may mean.
    fn substitute(&self, config: &MeshConfig) -> Option<AuthenticationInput> {
        let key = key_of(self);
        let references = references(self.spec.target_ref.as_ref(), &self.spec.target_refs);
        Some(AuthenticationInput {
            targets: Targets::possible(&references, &key.namespace, config)?,
            key,
            rules: Vec::new(),
            not_understood: Some("the object cannot be used as it is written".into()),
        })
    }

    fn readable_part(metadata: ObjectMeta, spec: Option<&Value>) -> Option<Self> {
        Some(Self {
            metadata,
            spec: RequestAuthenticationSpec {
                target_refs: readable_references(spec),
                ..RequestAuthenticationSpec::default()
            },
            ..Self::default()
        })
    }

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

    fn is_attached(&self) -> bool {
        self.spec.target_ref.is_some() || !self.spec.target_refs.is_empty()
    }
}

impl AuthenticationInput {
    /// At which waypoints it is in force, and which of its keys cannot be had.
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

fn key_of(object: &RequestAuthentication) -> PolicyKey {
    let metadata = &object.metadata;
    PolicyKey {
        namespace: metadata.namespace.as_deref().unwrap_or("default").into(),
        name: metadata.name.as_deref().unwrap_or_default().into(),
    }
}
