//! Records and status conditions of AuthorizationPolicies.

pub(crate) mod attached;
pub(crate) mod callers;
pub(crate) mod connections;
pub(crate) mod scopes;

use ambit_k8s_api::{AuthorizationPolicy, Kind, ObjectKey};
use ambit_model::{ArcStr, Authorization};

use crate::{
    condition::{ACCEPTED, ConditionType, Standing, WAYPOINT_ACCEPTED},
    index::{Index, change::Change},
    kinds::{kind::MeshKind, peer_authentication},
    labels::{Labels, selects},
    objects::{
        Objects,
        authorization_policy::{convert, input::PolicyInput},
        trust_domain_names::TrustDomainNames,
    },
    pod_directory::PodDirectory,
    problem::Note,
    relations::references::Edge,
    view::{MeshView, rendered::Rendered},
};

impl MeshKind for AuthorizationPolicy {
    const CONDITIONS: &'static [ConditionType] = &[ACCEPTED, WAYPOINT_ACCEPTED];

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
}

/// Whether a waypoint policy of the same namespace is, by its annotation, a copy of this policy.
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
    /// Returns the layer 4 policy that a waypoint policy is a copy of, if node proxies enforce it (it is no dry run)
    /// and both have the same action and rules. Connections that bypass the copy's waypoint are subject to the
    /// original.
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

/// Returns the names of the policies that the record of a workload with these labels lists.
pub(crate) fn policies_for(
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
    /// Returns the policy that node proxies receive, with principals expanded to all names of the mesh's trust domain.
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

    /// Builds the note on rules that have no effect on pods behind a waypoint.
    fn note(&self, view: &MeshView) -> Option<Note> {
        callers::note(view, self)
    }
}
