//! What the mesh reads from an AuthorizationPolicy.

use ambit_k8s_api::{
    AuthorizationPolicy,
    istio::{PolicyAction, selected_labels},
    labels,
};
use ambit_model::{Action, ArcStr, Authorization, Scope};

use super::{Labels, MeshConfig, rules};
use crate::problems::{FieldError, Note};

/// A policy as node proxies see it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PolicyInput {
    /// `None`: nothing for node proxies.
    pub(crate) sent: Option<Authorization>,
    /// Which workloads list it.
    pub(crate) selector: Option<Labels>,
}

impl PolicyInput {
    pub(crate) fn read(
        policy: &AuthorizationPolicy,
        config: &MeshConfig,
    ) -> Result<(Self, Vec<Note>), FieldError> {
        let mut notes = Vec::new();
        let spec = &policy.spec;
        let namespace: ArcStr = policy
            .metadata
            .namespace
            .as_deref()
            .unwrap_or("default")
            .into();
        let selector = selected_labels(spec.selector.as_ref()).cloned();
        let nothing = |note: Note| {
            Ok((
                Self {
                    sent: None,
                    selector: None,
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
        // Read even if it is not sent, so that mistakes show.
        let mut rules = Vec::new();
        for (index, rule) in spec.rules.iter().enumerate() {
            let at = format!("spec.rules[{index}]");
            rules.extend(rules::convert(rule, action, &namespace, &at, &mut notes)?);
        }
        if attached {
            return nothing(Note::new(
                "spec.targetRefs",
                "is enforced by the waypoint of its target only",
            ));
        }
        let dry_run = is_dry_run(policy)?;
        if dry_run && !config.dry_run_policies {
            return nothing(Note::new(
                format!("metadata.annotations[{}]", labels::DRY_RUN),
                "dry-run policies are not sent to node proxies unless --dry-run-policies is set",
            ));
        }
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
        Ok((
            Self {
                sent: Some(sent),
                selector,
            },
            notes,
        ))
    }

    /// What stands in for a policy of which no readable form is known: everything in its scope is
    /// refused until it is mended. Nothing for one that would not be enforced here anyway.
    pub(crate) fn stand_in(policy: &AuthorizationPolicy, config: &MeshConfig) -> Option<Self> {
        let spec = &policy.spec;
        if spec.is_attached() || is_dry_run(policy) == Ok(true) {
            return None;
        }
        let namespace: ArcStr = policy
            .metadata
            .namespace
            .as_deref()
            .unwrap_or("default")
            .into();
        let selector = selected_labels(spec.selector.as_ref()).cloned();
        let scope = match &selector {
            Some(_) => Scope::WorkloadSelector,
            None if namespace == config.root_namespace => Scope::Global,
            None => Scope::Namespace,
        };
        let sent = Authorization {
            name: policy.metadata.name.as_deref().unwrap_or_default().into(),
            namespace,
            scope,
            action: Action::Deny,
            // A rule without clauses matches everything.
            rules: vec![Vec::new()],
            dry_run: false,
            not_understood: None,
        };
        Some(Self {
            sent: Some(sent),
            selector,
        })
    }
}

/// Whether the policy is to be logged only.
fn is_dry_run(policy: &AuthorizationPolicy) -> Result<bool, FieldError> {
    let annotations = policy.metadata.annotations.as_ref();
    let annotation = annotations.and_then(|all| all.get(labels::DRY_RUN));
    match annotation.map(String::as_str) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => Err(FieldError::new(
            format!("metadata.annotations[{}]", labels::DRY_RUN),
            format!("{other:?} is neither true nor false"),
        )),
    }
}
