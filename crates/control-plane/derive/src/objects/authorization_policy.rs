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
            attached::Attached,
            input::PolicyInput,
            metadata::{is_dry_run, namespace_of},
        },
        readable::{Extent, Followed, Read, Readable, field},
        trust_domain_names::TrustDomainNames,
    },
    problem::{FieldError, Note},
};

impl Followed for AuthorizationPolicy {
    const EXTENT: Extent = Extent::Whole { labels: None };
}

impl Readable for AuthorizationPolicy {
    type Input = PolicyInput;

    fn read(&self, config: &MeshConfig) -> Result<Read<PolicyInput>, FieldError> {
        let (input, notes) = PolicyInput::read(self, config)?;
        Ok(Read::of(Some(input), notes))
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
                selector: field(spec, "selector"),
                target_ref: field(spec, "targetRef"),
                target_refs: field(spec, "targetRefs").unwrap_or_default(),
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
                    sent: None,
                    selector: None,
                    callers: None,
                    attached: None,
                    content: None,
                    with_principals: None,
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
                sent: None,
                selector: None,
                callers: None,
                attached: Some(Attached::read(policy, config, &mut notes)?),
                content: content(&spec.action, &spec.rules),
                with_principals: None,
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
        let rules = convert(&spec.rules, action, &namespace, &as_written, &mut notes)?;
        let dry_run = is_dry_run(policy)?;
        if dry_run && !config.dry_run_policies {
            return nothing(Note::new(
                format!("metadata.annotations[{}]", labels::DRY_RUN),
                "dry-run policies are not sent to node proxies unless --dry-run-policies is set",
            ));
        }
        let mut input = Self::sent(policy, config, action, rules, dry_run);
        input.callers = rules::field(&spec.rules);
        input.content = content(&spec.action, &spec.rules);
        let names_principals = spec.rules.iter().any(rules::names_principals);
        input.with_principals = names_principals.then(|| spec.rules.as_slice().into());
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
                sent: None,
                selector: None,
                callers: None,
                attached: Some(Attached::substitute(policy, config)?),
                content: None,
                with_principals: None,
            });
        }
        // A rule without clauses matches everything.
        let everything = vec![Vec::new()];
        Some(Self::sent(policy, config, Action::Deny, everything, false))
    }

    /// Builds the policy that node proxies enforce: the given rules, in the scope of the policy's selector and
    /// namespace.
    fn sent(
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
        let sent = Authorization {
            name: policy.metadata.name.as_deref().unwrap_or_default().into(),
            namespace,
            scope,
            action,
            rules,
            dry_run,
            not_understood: None,
        };
        Self {
            sent: Some(sent),
            selector,
            callers: None,
            attached: None,
            content: None,
            with_principals: None,
        }
    }
}

pub(crate) fn convert(
    rules: &[istio::Rule],
    action: Action,
    namespace: &ArcStr,
    names: &TrustDomainNames,
    notes: &mut Vec<Note>,
) -> Result<Vec<Rule>, FieldError> {
    let mut converted = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        let at = format!("spec.rules[{index}]");
        converted.extend(rules::convert(rule, action, namespace, names, &at, notes)?);
    }
    Ok(converted)
}

fn content(action: &PolicyAction, rules: &[istio::Rule]) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(&(action, rules))
        .ok()?
        .hash(&mut hasher);
    Some(hasher.finish())
}
