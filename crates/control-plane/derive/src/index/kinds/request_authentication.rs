//! Request authentications: whose tokens waypoints take. Only those that are attached by `targetRefs` have an effect:
//! node proxies read no requests.

mod rules;

use std::collections::BTreeMap;

use ambit_k8s_api::{
    Kind, ObjectKey, ObjectMeta, RequestAuthentication, istio::RequestAuthenticationSpec,
};
use ambit_model::{ArcStr, Authentication, GatewayName, JwtKeys, JwtRule, PolicyKey};
use serde_json::Value;

use super::authorization_policy::attached::{MAX_TARGETS, served, target, verdict, waypoints_of};
use crate::{
    MeshConfig, PodDirectory,
    condition::{AUTHENTICATION_ACCEPTED, ConditionType, Standing, Verdict},
    index::{
        Index, KeySource, KeyState,
        kind::{Change, Extent, Followed, MeshKind, Read, Rendered, field},
    },
    problem::FieldError,
};

impl Followed for RequestAuthentication {
    const EXTENT: Extent = Extent::Whole { labels: None };
}

/// An object as the mesh sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AuthenticationInput {
    targets: Vec<ObjectKey>,
    key: PolicyKey,
    rules: Vec<RuleInput>,
    not_understood: Option<ArcStr>,
}

/// One issuer; its keys come from `source`, if there is one.
#[derive(Clone, Debug, PartialEq)]
struct RuleInput {
    rule: JwtRule,
    source: Option<KeySource>,
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
        let mut targets = Vec::new();
        for (field, target) in targets_of(self, config) {
            targets.push(target.map_err(|message| FieldError::new(field, message))?);
        }
        if targets.len() > MAX_TARGETS {
            let message = format!("{} targets; at most {MAX_TARGETS}", targets.len());
            return Err(FieldError::new("spec.targetRefs", message));
        }
        let rules = rules::read(&self.spec.jwt_rules, &mut notes)?;
        let input = AuthenticationInput {
            targets,
            key: key_of(self),
            rules,
            not_understood: None,
        };
        Ok(Read::of(Some(input), notes))
    }

    /// Refuses everything at those of its targets that can be understood.
    fn substitute(&self, config: &MeshConfig) -> Option<AuthenticationInput> {
        let targets = targets_of(self, config);
        Some(AuthenticationInput {
            targets: targets.filter_map(|(_, target)| target.ok()).collect(),
            key: key_of(self),
            rules: Vec::new(),
            not_understood: Some("the object cannot be used as it is written".into()),
        })
    }

    fn readable_part(metadata: ObjectMeta, spec: Option<&Value>) -> Option<Self> {
        Some(Self {
            metadata,
            spec: RequestAuthenticationSpec {
                target_ref: field(spec, "targetRef"),
                target_refs: field(spec, "targetRefs").unwrap_or_default(),
                ..RequestAuthenticationSpec::default()
            },
            ..Self::default()
        })
    }

    fn changed(index: &mut Index, change: &Change<'_, AuthenticationInput>, _: &mut PodDirectory) {
        let targets = |one: Option<&AuthenticationInput>| {
            one.map(|one| one.targets.clone()).unwrap_or_default()
        };
        let (old, new) = (targets(change.old), targets(change.new));
        index.policy_targets.replace(change.key, old, new);
        index.mark(change.key.clone());
    }

    fn render(index: &Index, _: &ObjectKey, input: &AuthenticationInput) -> Rendered {
        let rules = input.rules.iter().map(|one| one.render(index));
        let authentication = Authentication {
            key: input.key.clone(),
            rules: rules.collect(),
            not_understood: input.not_understood.clone(),
            ..Authentication::default()
        };
        let mut places = Vec::new();
        for target in &input.targets {
            match target.kind {
                Kind::Gateway | Kind::GatewayClass => {
                    let gateways = waypoints_of(index, target).into_iter();
                    places.extend(gateways.map(|gateway| (gateway, None)));
                }
                _ => {
                    let services = served(index, target).into_iter();
                    places.extend(services.map(|(gateway, service)| (gateway, Some(service))));
                }
            }
        }
        let mut waypoints: BTreeMap<GatewayName, Authentication> = BTreeMap::new();
        for (gateway, service) in places {
            let told = waypoints.entry(gateway);
            let told = told.or_insert_with(|| authentication.clone());
            match service {
                None => told.for_gateway = true,
                Some(service) => told.services.push(service),
            }
        }
        for authentication in waypoints.values_mut() {
            authentication.services.sort_unstable();
            authentication.services.dedup();
        }
        Rendered {
            waypoint_authentications: waypoints.into_iter().collect(),
            ..Rendered::default()
        }
    }

    fn standing(index: &Index, _: &ObjectKey, input: &AuthenticationInput) -> Option<Standing> {
        Some(Standing {
            verdict: Some(input.verdict(index)),
            parts: Vec::new(),
        })
    }

    fn is_in_force(input: &AuthenticationInput) -> bool {
        !input.targets.is_empty()
    }

    fn is_attached(&self) -> bool {
        self.spec.target_ref.is_some() || !self.spec.target_refs.is_empty()
    }
}

impl AuthenticationInput {
    /// At which waypoints it is in force, and which of its keys cannot be had.
    fn verdict(&self, index: &Index) -> Verdict {
        if self.targets.is_empty() {
            return Verdict {
                is_true: false,
                reason: "NotAttached",
                message: "there are no targetRefs: tokens are read by waypoints alone, so the object has no effect"
                    .to_owned(),
                is_trouble: true,
            };
        }
        let mut verdict = verdict(index, &self.targets);
        let rules = self.rules.iter().enumerate();
        let troubles: Vec<_> = rules
            .filter_map(|(at, rule)| rule.trouble(index, at))
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
    fn render(&self, index: &Index) -> JwtRule {
        let Some(source) = &self.source else {
            return self.rule.clone();
        };
        let keys = match index.keys(source) {
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

    fn trouble(&self, index: &Index, at: usize) -> Option<String> {
        let source = self.source.as_ref()?;
        let KeyState { keys, trouble } = index.keys(source)?;
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

/// What the references name, with their fields.
fn targets_of(
    object: &RequestAuthentication,
    config: &MeshConfig,
) -> impl Iterator<Item = (String, Result<ObjectKey, String>)> {
    let namespace = key_of(object).namespace;
    let one = object.spec.target_ref.iter();
    let one = one.map(|reference| ("spec.targetRef".to_owned(), reference));
    let several = object.spec.target_refs.iter().enumerate();
    let several = several.map(|(at, reference)| (format!("spec.targetRefs[{at}]"), reference));
    one.chain(several)
        .map(move |(field, reference)| (field, target(reference, &namespace, config)))
}
