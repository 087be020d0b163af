//! Records and status conditions of AuthorizationPolicies.

pub(crate) mod attached;
pub(crate) mod callers;
pub(crate) mod connections;
pub(crate) mod scopes;

use ambit_k8s_api::{AuthorizationPolicy, Kind, ObjectKey};
use ambit_model::{ArcStr, Authorization};

use crate::{
    condition::{ConditionType, DerivedStatus, WAYPOINT_ACCEPTED, ZTUNNEL_ACCEPTED},
    index::{Index, change::Change},
    kinds::{kind::MeshKind, peer_authentication},
    labels::{Labels, selects},
    objects::{
        Objects,
        authorization_policy::{convert_rules, input::PolicyInput},
        trust_domain_names::TrustDomainNames,
    },
    pod_directory::PodDirectory,
    problem::Note,
    relations::references::ReferenceKind,
    view::{MeshView, rendered::RenderedRecords},
};

impl MeshKind for AuthorizationPolicy {
    const CONDITIONS: &'static [ConditionType] = &[ZTUNNEL_ACCEPTED, WAYPOINT_ACCEPTED];

    fn on_change(index: &mut Index, change: &Change<'_, PolicyInput>, _: &mut PodDirectory) {
        let key = change.key;
        index.mark_object_stale(key.clone());
        for policy in change.both_versions() {
            callers::mark_client_notes_stale(index, &key.namespace, policy);
        }
        let targets = |policy: Option<&PolicyInput>| -> Vec<ObjectKey> {
            let attached = policy.and_then(|policy| policy.attached.as_ref());
            attached
                .map(|one| one.targets.0.clone())
                .unwrap_or_default()
        };
        index.update_policy_targets(key, targets(change.old), targets(change.new));
        let provider = |policy: Option<&PolicyInput>| {
            let attached = policy.and_then(|policy| policy.attached.as_ref());
            attached.and_then(|one| one.provider.clone())
        };
        index.view.references.replace(
            ReferenceKind::ExtensionProvider,
            key,
            provider(change.old),
            provider(change.new),
        );
        let join_names = |policy: Option<&PolicyInput>| {
            let node_proxy_policy = policy.filter(|policy| policy.node_proxy_policy.is_some());
            node_proxy_policy.and_then(|policy| policy.selector.clone())
        };
        if has_waypoint_copy(&index.view, key) {
            // Which connections the copy concerns depends on what the pods' node proxies enforce.
            index.mark_namespace_workloads_stale(&key.namespace);
        }
        let (old, new) = (join_names(change.old), join_names(change.new));
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
                index.mark_selected_workloads_stale(&namespace, selector);
                if selector.is_some() {
                    index.mark_inline_endpoints_stale(&namespace);
                }
            }
        }
    }

    fn render(view: &MeshView, _: &ObjectKey, policy: &PolicyInput) -> RenderedRecords {
        let attached = policy.attached.as_ref();
        let names = view.own_trust_domain_names();
        let mut rendered = RenderedRecords {
            policies: policy
                .render_node_proxy_policy(&names)
                .into_iter()
                .collect(),
            conflicts: policy
                .waypoint_pods_note(view)
                .into_iter()
                .chain(attached.and_then(|one| one.provider_note(view)))
                .collect(),
            ..RenderedRecords::default()
        };
        rendered.add_waypoint_records(attached.map(|one| one.render(view)).unwrap_or_default());
        rendered
    }

    fn derived_status(
        view: &MeshView,
        _: &ObjectKey,
        policy: &PolicyInput,
    ) -> Option<DerivedStatus> {
        let attached = policy.attached.as_ref();
        let condition = attached.map(|one| one.accepted_condition(view));
        Some(DerivedStatus {
            condition,
            ..DerivedStatus::default()
        })
    }

    fn is_in_force(policy: &PolicyInput) -> bool {
        policy.node_proxy_policy.is_some() || policy.attached.is_some()
    }
}

/// Whether a waypoint policy of the same namespace is, by its annotation, a copy of this policy.
fn has_waypoint_copy(view: &MeshView, original: &ObjectKey) -> bool {
    let objects = view.objects(&original.namespace);
    let policies = objects.map(|objects| objects.all_of_kind::<AuthorizationPolicy>().values());
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
    pub(crate) fn enforced_l4_original(&self, copy: &ObjectKey) -> Option<ObjectKey> {
        if copy.kind != Kind::AuthorizationPolicy {
            return None;
        }
        let copied = self.get::<AuthorizationPolicy>(copy)?;
        let name = copied.attached.as_ref()?.migrated_from.as_ref()?;
        let key = ObjectKey::new(copy.kind, copy.namespace.clone(), name.clone());
        let original = self.get::<AuthorizationPolicy>(&key)?;
        let is_enforced = original
            .node_proxy_policy
            .as_ref()
            .is_some_and(|node_proxy_policy| !node_proxy_policy.dry_run);
        let is_same =
            original.content_hash.is_some() && original.content_hash == copied.content_hash;
        (is_enforced && is_same).then_some(key)
    }
}

/// Returns the names of the policies that the record of a workload with these labels lists.
pub(crate) fn policy_names_for(
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
            let policies = objects.all_of_kind::<AuthorizationPolicy>().iter();
            policies.map(move |entry| (namespace, entry))
        })
        .filter(|(_, (_, policy))| {
            let selected = policy
                .selector
                .as_ref()
                .is_some_and(|selector| selects(selector, labels));
            policy.node_proxy_policy.is_some() && selected
        })
        .map(|(namespace, (name, _))| arcstr::format!("{namespace}/{name}"))
        .collect();
    names.sort_unstable();
    let of_peers = peer_authentication::strict_policy_for(view, namespace, objects, labels);
    names.extend(of_peers.map(|key| ArcStr::from(key.to_string())));
    names
}

impl PolicyInput {
    /// Returns the policy that node proxies receive, with principals expanded to all names of the mesh's trust domain.
    fn render_node_proxy_policy(&self, names: &TrustDomainNames) -> Option<Authorization> {
        let mut node_proxy_policy = self.node_proxy_policy.clone()?;
        if let Some(rules) = self
            .unexpanded_rules
            .as_deref()
            .filter(|_| !names.needs_no_expansion())
        {
            let expanded = convert_rules(
                rules,
                node_proxy_policy.action,
                &node_proxy_policy.namespace,
                names,
                &mut Vec::new(),
            );
            match expanded {
                Ok(rules) => node_proxy_policy.rules = rules,
                // The same rules were read before.
                Err(error) => node_proxy_policy.not_understood = Some(error.to_string().into()),
            }
        }
        Some(node_proxy_policy)
    }

    /// Builds the note on rules that have no effect on pods behind a waypoint.
    fn waypoint_pods_note(&self, view: &MeshView) -> Option<Note> {
        callers::client_identity_note(view, self)
    }
}
