//! Authorization policies: each is a policy of the workloads that it selects.

mod attached;
pub(super) mod callers;
mod connections;
mod http;
mod input;
mod metadata;
mod rules;
mod scopes;
mod values;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use ambit_k8s_api::{
    AuthorizationPolicy, Kind, ObjectKey, ObjectMeta,
    istio::{self, AuthorizationPolicySpec, PolicyAction, selected_labels},
    labels,
};
use ambit_model::{Action, ArcStr, Authorization, Rule, Scope};
use serde_json::Value;

use super::{Objects, peer_authentication};
use crate::{
    Labels, MeshConfig, PodDirectory,
    condition::{ACCEPTED, ConditionType, Standing, WAYPOINT_ACCEPTED},
    index::{
        Index, MeshView,
        kind::{Change, Extent, Followed, MeshKind, Read, Rendered, field},
        references::Edge,
        trust_domains::TrustDomainNames,
    },
    problem::{FieldError, Note},
    selects,
};
use attached::Attached;
pub(crate) use input::PolicyInput;
use metadata::{is_dry_run, namespace_of};

impl Followed for AuthorizationPolicy {
    const EXTENT: Extent = Extent::Whole { labels: None };
}

impl MeshKind for AuthorizationPolicy {
    type Input = PolicyInput;

    const CONDITIONS: &'static [ConditionType] = &[ACCEPTED, WAYPOINT_ACCEPTED];

    fn read(&self, config: &MeshConfig) -> Result<Read<PolicyInput>, FieldError> {
        let (input, notes) = PolicyInput::read(self, config)?;
        Ok(Read::of(Some(input), notes))
    }

    fn substitute(&self, config: &MeshConfig) -> Option<PolicyInput> {
        PolicyInput::substitute(self, config)
    }

    /// Its scope. One that cannot be read either is the whole namespace.
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

    fn changed(index: &mut Index, change: &Change<'_, PolicyInput>, _: &mut PodDirectory) {
        let key = change.key;
        index.mark(key.clone());
        for policy in change.both() {
            callers::mark(index, &key.namespace, policy);
        }
        let targets = |policy: Option<&PolicyInput>| -> Vec<ObjectKey> {
            let attached = policy.and_then(|policy| policy.attached.as_ref());
            attached
                .map(|one| one.targets.0.clone())
                .unwrap_or_default()
        };
        index.attach_rule(key, targets(change.old), targets(change.new));
        let provider = |policy: Option<&PolicyInput>| {
            let attached = policy.and_then(|policy| policy.attached.as_ref());
            attached.and_then(|one| one.provider.clone())
        };
        index.view.references.replace(
            Edge::Provider,
            key,
            provider(change.old),
            provider(change.new),
        );
        let listed = |policy: Option<&PolicyInput>| {
            let sent = policy.filter(|policy| policy.sent.is_some());
            sent.and_then(|policy| policy.selector.clone())
        };
        if has_copy(&index.view, key) {
            // Which connections the copy concerns depends on what the pods' node proxies enforce.
            index.mark_namespace(&key.namespace);
        }
        let (old, new) = (listed(change.old), listed(change.new));
        if old == new {
            return;
        }
        let namespaces: Vec<_> = if key.namespace == index.view.config.root_namespace {
            index
                .view
                .all_objects()
                .map(|(name, _)| name.clone())
                .collect()
        } else {
            vec![key.namespace.clone()]
        };
        for namespace in namespaces {
            for selector in [old.as_ref(), new.as_ref()] {
                index.mark_selected(&namespace, selector);
                if selector.is_some() {
                    index.mark_endpoints_of_entries(&namespace);
                }
            }
        }
    }

    fn render(view: &MeshView, _: &ObjectKey, policy: &PolicyInput) -> Rendered {
        let attached = policy.attached.as_ref();
        let names = view.own_trust_domain_names();
        let mut rendered = Rendered {
            policies: policy.for_node_proxies(&names).into_iter().collect(),
            conflicts: policy
                .note(view)
                .into_iter()
                .chain(attached.and_then(|one| one.note(view)))
                .collect(),
            ..Rendered::default()
        };
        rendered.add(attached.map(|one| one.render(view)).unwrap_or_default());
        rendered
    }

    fn standing(view: &MeshView, _: &ObjectKey, policy: &PolicyInput) -> Option<Standing> {
        let attached = policy.attached.as_ref();
        let verdict = attached.map(|one| one.verdict(view));
        Some(Standing {
            verdict,
            ..Standing::default()
        })
    }

    fn is_in_force(policy: &PolicyInput) -> bool {
        policy.sent.is_some() || policy.attached.is_some()
    }

    fn is_attached(&self) -> bool {
        self.spec.is_attached()
    }
}

/// Whether a policy of the same namespace is a waypoint's copy of this one.
fn has_copy(view: &MeshView, original: &ObjectKey) -> bool {
    let objects = view.objects(&original.namespace);
    let policies = objects.map(|objects| objects.all::<AuthorizationPolicy>().values());
    let mut attached = policies
        .into_iter()
        .flatten()
        .filter_map(|policy| policy.attached.as_ref());
    attached.any(|one| one.migrated_from.as_ref() == Some(&original.name))
}

impl MeshView {
    /// The policy of which an attached one is a copy, if node proxies enforce that at pods: with the same action and
    /// rules, not on trial. What bypasses the copy's waypoint meets it instead.
    pub(crate) fn enforced_original(&self, copy: &ObjectKey) -> Option<ObjectKey> {
        if copy.kind != Kind::AuthorizationPolicy {
            return None;
        }
        let copied = self.get::<AuthorizationPolicy>(copy)?;
        let name = copied.attached.as_ref()?.migrated_from.as_ref()?;
        let key = ObjectKey::new(copy.kind, copy.namespace.clone(), name.clone());
        let original = self.get::<AuthorizationPolicy>(&key)?;
        let is_enforced = original.sent.as_ref().is_some_and(|sent| !sent.dry_run);
        let is_same = original.content.is_some() && original.content == copied.content;
        (is_enforced && is_same).then_some(key)
    }
}

/// The policies that a workload with these labels lists.
pub(super) fn policies_for(
    view: &MeshView,
    namespace: &ArcStr,
    objects: &Objects,
    labels: &Labels,
) -> Vec<ArcStr> {
    let root_namespace = &view.config.root_namespace;
    let root = view
        .objects(root_namespace)
        .filter(|_| namespace != root_namespace);
    let candidates = [(namespace, Some(objects)), (root_namespace, root)];
    let mut names: Vec<ArcStr> = candidates
        .into_iter()
        .filter_map(|(namespace, objects)| Some((namespace, objects?)))
        .flat_map(|(namespace, objects)| {
            let policies = objects.all::<AuthorizationPolicy>().iter();
            policies.map(move |entry| (namespace, entry))
        })
        .filter(|(_, (_, policy))| {
            let selected = policy
                .selector
                .as_ref()
                .is_some_and(|selector| selects(selector, labels));
            policy.sent.is_some() && selected
        })
        .map(|(namespace, (name, _))| arcstr::format!("{namespace}/{name}"))
        .collect();
    names.sort_unstable();
    let of_peers = peer_authentication::policy_for(view, namespace, objects, labels);
    names.extend(of_peers.map(|key| ArcStr::from(key.to_string())));
    names
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
        input.callers = callers::field(&spec.rules);
        input.content = content(&spec.action, &spec.rules);
        let names_principals = spec.rules.iter().any(rules::names_principals);
        input.with_principals = names_principals.then(|| spec.rules.as_slice().into());
        Ok((input, notes))
    }

    /// The policy as node proxies see it, with principals under all names of the mesh's trust domain.
    fn for_node_proxies(&self, names: &TrustDomainNames) -> Option<Authorization> {
        let mut sent = self.sent.clone()?;
        if let Some(rules) = self
            .with_principals
            .as_deref()
            .filter(|_| !names.is_literal())
        {
            let expanded = convert(rules, sent.action, &sent.namespace, names, &mut Vec::new());
            match expanded {
                Ok(rules) => sent.rules = rules,
                // The same rules were read before.
                Err(error) => sent.not_understood = Some(error.to_string().into()),
            }
        }
        Some(sent)
    }

    /// Note on the part that has no effect because of waypoints.
    fn note(&self, view: &MeshView) -> Option<Note> {
        callers::note(view, self)
    }

    /// The fail-closed substitute: everything in its scope is refused. Nothing for a policy that would not
    /// be enforced here anyway.
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

    /// Policy that node proxies enforce: these rules, in the scope of the policy's selector and namespace.
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

fn convert(
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
