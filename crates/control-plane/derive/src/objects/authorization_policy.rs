//! Parsing of AuthorizationPolicies. Node proxies enforce policies with a selector or without targets; waypoints
//! enforce policies that are attached to objects by `targetRefs`.

pub(crate) mod attached;
pub(crate) mod http;
pub(crate) mod input;
pub(crate) mod metadata;
pub(crate) mod rules;
pub(crate) mod values;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use ambit_k8s_api::{
    AuthorizationPolicy, ObjectMeta,
    istio::{self, AuthorizationPolicySpec, PolicyAction, selected_labels},
    labels,
};
use ambit_model::{Action, ArcStr, Authorization, Rule, Scope};
use serde_json::Value;

use crate::{
    config::MeshConfig,
    objects::{
        authorization_policy::{
            attached::AttachedPolicy,
            input::PolicyInput,
            metadata::{is_dry_run, namespace_of},
        },
        readable::{FetchExtent, FetchedKind, Parsed, Readable, deserialize_field},
        trust_domain_names::TrustDomainNames,
    },
    problem::{FieldError, Note},
};

impl FetchedKind for AuthorizationPolicy {
    const FETCH_EXTENT: FetchExtent = FetchExtent::Whole { labels: None };
}

impl Readable for AuthorizationPolicy {
    type Input = PolicyInput;

    fn read(&self, config: &MeshConfig) -> Result<Parsed<PolicyInput>, FieldError> {
        let (input, notes) = PolicyInput::read(self, config)?;
        Ok(Parsed::new(Some(input), notes))
    }

    fn substitute(&self, config: &MeshConfig) -> Option<PolicyInput> {
        PolicyInput::substitute(self, config)
    }

    /// Reads the selector and the targets of the policy alone; without a readable selector and targets, the scope is
    /// the whole namespace.
    fn readable_part(metadata: ObjectMeta, spec: Option<&Value>) -> Option<Self> {
        Some(Self {
            metadata,
            spec: AuthorizationPolicySpec {
                selector: deserialize_field(spec, "selector"),
                target_ref: deserialize_field(spec, "targetRef"),
                target_refs: deserialize_field(spec, "targetRefs").unwrap_or_default(),
                ..AuthorizationPolicySpec::default()
            },
            ..Self::default()
        })
    }

    fn is_attached(&self) -> bool {
        self.spec.is_attached()
    }
}

impl PolicyInput {
    fn read(
        policy: &AuthorizationPolicy,
        config: &MeshConfig,
    ) -> Result<(Self, Vec<Note>), FieldError> {
        let mut notes = Vec::new();
        let spec = &policy.spec;
        let namespace = namespace_of(policy);
        let selector = selected_labels(spec.selector.as_ref());
        let nothing = |note: Note| {
            Ok((
                Self {
                    node_proxy_policy: None,
                    selector: None,
                    client_field: None,
                    attached: None,
                    content_hash: None,
                    unexpanded_rules: None,
                },
                vec![note],
            ))
        };
        let attached = spec.is_attached();
        if attached && selector.is_some() {
            return Err(FieldError::new(
                "spec.selector",
                "cannot be given together with spec.targetRefs",
            ));
        }
        if attached {
            let attached = Self {
                node_proxy_policy: None,
                selector: None,
                client_field: None,
                attached: Some(AttachedPolicy::read(policy, config, &mut notes)?),
                content_hash: content_hash(&spec.action, &spec.rules),
                unexpanded_rules: None,
            };
            return Ok((attached, notes));
        }
        let action = match spec.action {
            PolicyAction::Allow => Action::Allow,
            PolicyAction::Deny => Action::Deny,
            PolicyAction::Audit => {
                return nothing(Note::new(
                    "spec.action",
                    "AUDIT has no effect on node proxies",
                ));
            }
            PolicyAction::Custom => {
                return nothing(Note::new(
                    "spec.action",
                    "CUSTOM is enforced by waypoints only",
                ));
            }
        };
        let as_written = TrustDomainNames::default();
        let rules = convert_rules(&spec.rules, action, &namespace, &as_written, &mut notes)?;
        let dry_run = is_dry_run(policy)?;
        if dry_run && !config.dry_run_policies {
            return nothing(Note::new(
                format!("metadata.annotations[{}]", labels::DRY_RUN),
                "dry-run policies are not sent to node proxies unless --dry-run-policies is set",
            ));
        }
        let mut input = Self::node_proxy_policy(policy, config, action, rules, dry_run);
        input.client_field = rules::first_client_field(&spec.rules);
        input.content_hash = content_hash(&spec.action, &spec.rules);
        let names_principals = spec.rules.iter().any(rules::names_principals);
        input.unexpanded_rules = names_principals.then(|| spec.rules.as_slice().into());
        Ok((input, notes))
    }

    /// Builds the fail-closed substitute, which denies everything in the policy's scope. `None` for dry-run policies,
    /// and for policies whose targets can mean no object.
    fn substitute(policy: &AuthorizationPolicy, config: &MeshConfig) -> Option<Self> {
        if is_dry_run(policy) == Ok(true) {
            return None;
        }
        if policy.spec.is_attached() {
            return Some(Self {
                node_proxy_policy: None,
                selector: None,
                client_field: None,
                attached: Some(AttachedPolicy::substitute(policy, config)?),
                content_hash: None,
                unexpanded_rules: None,
            });
        }
        // A rule without clauses matches everything.
        let everything = vec![Vec::new()];
        Some(Self::node_proxy_policy(
            policy,
            config,
            Action::Deny,
            everything,
            false,
        ))
    }

    /// Builds the policy that node proxies enforce: the given rules, in the scope of the policy's selector and
    /// namespace.
    fn node_proxy_policy(
        policy: &AuthorizationPolicy,
        config: &MeshConfig,
        action: Action,
        rules: Vec<Rule>,
        dry_run: bool,
    ) -> Self {
        let namespace = namespace_of(policy);
        let selector = selected_labels(policy.spec.selector.as_ref()).cloned();
        let scope = match &selector {
            Some(_) => Scope::WorkloadSelector,
            None if namespace == config.root_namespace => Scope::Global,
            None => Scope::Namespace,
        };
        let node_proxy_policy = Authorization {
            name: policy.metadata.name.as_deref().unwrap_or_default().into(),
            namespace,
            scope,
            action,
            rules,
            dry_run,
            not_understood: None,
        };
        Self {
            node_proxy_policy: Some(node_proxy_policy),
            selector,
            client_field: None,
            attached: None,
            content_hash: None,
            unexpanded_rules: None,
        }
    }
}

pub(crate) fn convert_rules(
    rules: &[istio::Rule],
    action: Action,
    namespace: &ArcStr,
    names: &TrustDomainNames,
    notes: &mut Vec<Note>,
) -> Result<Vec<Rule>, FieldError> {
    let mut converted = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        let at = format!("spec.rules[{index}]");
        converted.extend(rules::convert_rule(
            rule, action, namespace, names, &at, notes,
        )?);
    }
    Ok(converted)
}

fn content_hash(action: &PolicyAction, rules: &[istio::Rule]) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(&(action, rules))
        .ok()?
        .hash(&mut hasher);
    Some(hasher.finish())
}
