//! Parsing of RequestAuthentications.

pub(crate) mod input;
pub(crate) mod rules;

use ambit_k8s_api::{ObjectMeta, RequestAuthentication, istio::RequestAuthenticationSpec};
use ambit_model::{ArcStr, PolicyKey};
use serde_json::Value;

use crate::{
    config::MeshConfig,
    objects::{
        key_source::KeySource,
        readable::{FetchExtent, FetchedKind, Parsed, Readable},
        request_authentication::input::JwtRuleInput,
        targets::{PolicyTargets, readable_references, target_references},
    },
    problem::FieldError,
};

impl FetchedKind for RequestAuthentication {
    const FETCH_EXTENT: FetchExtent = FetchExtent::Whole { labels: None };
}

/// Parsed RequestAuthentication object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AuthenticationInput {
    pub(crate) targets: PolicyTargets,
    pub(crate) key: PolicyKey,
    pub(crate) rules: Vec<JwtRuleInput>,
    pub(crate) not_understood: Option<ArcStr>,
}

impl AuthenticationInput {
    /// Returns the URLs that the object's key sets are fetched from.
    pub(crate) fn key_sources(&self) -> impl Iterator<Item = &KeySource> {
        self.rules.iter().filter_map(|rule| rule.source.as_ref())
    }
}

impl Readable for RequestAuthentication {
    type Input = AuthenticationInput;

    fn read(&self, config: &MeshConfig) -> Result<Parsed<AuthenticationInput>, FieldError> {
        let mut notes = Vec::new();
        if self.spec.selector.is_some() && self.is_attached() {
            return Err(FieldError::new(
                "spec.selector",
                "cannot be given together with spec.targetRefs",
            ));
        }
        let key = policy_key(self);
        let references = target_references(self.spec.target_ref.as_ref(), &self.spec.target_refs);
        let targets = PolicyTargets::read(references, &key.namespace, config)?;
        // Objects of the root namespace are the administrator's.
        let caller = (key.namespace != config.root_namespace).then(|| key.namespace.clone());
        let rules = rules::read(&self.spec.jwt_rules, caller.as_ref(), &mut notes)?;
        let input = AuthenticationInput {
            targets,
            key,
            rules,
            not_understood: None,
        };
        Ok(Parsed::new(Some(input), notes))
    }

    /// Builds the fail-closed substitute, which refuses all requests to every object that the targets may mean.
    fn substitute(&self, config: &MeshConfig) -> Option<AuthenticationInput> {
        let key = policy_key(self);
        let references = target_references(self.spec.target_ref.as_ref(), &self.spec.target_refs);
        Some(AuthenticationInput {
            targets: PolicyTargets::possible_targets(&references, &key.namespace, config)?,
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

    fn is_attached(&self) -> bool {
        self.spec.target_ref.is_some() || !self.spec.target_refs.is_empty()
    }
}

fn policy_key(object: &RequestAuthentication) -> PolicyKey {
    let metadata = &object.metadata;
    PolicyKey {
        namespace: metadata.namespace.as_deref().unwrap_or("default").into(),
        name: metadata.name.as_deref().unwrap_or_default().into(),
    }
}
