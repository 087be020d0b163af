//! PeerAuthentication: which workloads refuse plaintext, and on which ports.
//!
//! There are three levels: the mesh (root namespace, no selector), a namespace (no selector), workloads (by selector).
//! The oldest of several objects on one level applies. If its mode is unset, the mode of the next wider level applies.
//! Plaintext is refused by a DENY policy for clients without an identity: one static policy shared by workloads that
//! refuse plaintext on all ports, and one policy for each PeerAuthentication whose ports differ in mode.

use ambit_k8s_api::{Kind, ObjectKey, PeerAuthentication, Pod};
use ambit_model::{Action, ArcStr, Authorization, Match, PolicyKey, Scope, StringMatch};

use crate::{
    condition::{ConditionType, ZTUNNEL_ACCEPTED},
    index::{Index, change::Change},
    kinds::kind::MeshKind,
    labels::{Labels, selects},
    objects::{
        Objects,
        peer_authentication::{Mode, PeerAuthInput},
    },
    pod_directory::PodDirectory,
    view::{MeshView, rendered::RenderedRecords},
};

impl MeshKind for PeerAuthentication {
    const CONDITIONS: &'static [ConditionType] = &[ZTUNNEL_ACCEPTED];

    fn on_change(index: &mut Index, change: &Change<'_, PeerAuthInput>, _: &mut PodDirectory) {
        let key = change.key;
        index.mark_strict_policy_stale();
        index.mark_object_stale(key.clone());
        let for_all = change
            .both_versions()
            .any(|policy| policy.selector.is_none());
        if !for_all {
            for policy in change.both_versions() {
                index.mark_selected_workloads_stale(&key.namespace, policy.selector.as_ref());
            }
            index.mark_inline_endpoints_stale(&key.namespace);
            return;
        }
        let is_mesh = key.namespace == index.view.config.root_namespace;
        if is_mesh {
            index.mark_all_workloads_stale();
        } else {
            index.mark_namespace_workloads_stale(&key.namespace);
        }
        // What they inherit may be another mode.
        let heirs: Vec<_> = index
            .view
            .all_objects()
            .filter(|(namespace, _)| is_mesh || **namespace == key.namespace)
            .flat_map(|(namespace, objects)| {
                let names = objects.all_of_kind::<Self>().keys();
                names.map(|name| {
                    ObjectKey::new(Kind::PeerAuthentication, namespace.clone(), name.clone())
                })
            })
            .collect();
        for heir in heirs {
            index.mark_object_stale(heir);
        }
    }

    fn render(view: &MeshView, key: &ObjectKey, policy: &PeerAuthInput) -> RenderedRecords {
        let is_effective = key.namespace != view.config.root_namespace;
        let objects = view.objects(&key.namespace).filter(|_| is_effective);
        RenderedRecords {
            policies: objects
                .and_then(|objects| policy.converted_policy(inherited_mode(view, objects)))
                .into_iter()
                .collect(),
            ..RenderedRecords::default()
        }
    }

    fn is_in_force(_: &PeerAuthInput) -> bool {
        true
    }
}

/// Name of the shared policy that refuses all plaintext, in the root namespace.
const STATIC_STRICT_POLICY_NAME: ArcStr = arcstr::literal!("istio_converted_static_strict");
/// Prefix of the names of policies converted from one PeerAuthentication.
const CONVERTED_POLICY_PREFIX: &str = "converted_peer_authentication_";

impl PeerAuthInput {
    fn key(&self) -> PolicyKey {
        PolicyKey {
            namespace: self.namespace.clone(),
            name: arcstr::format!("{CONVERTED_POLICY_PREFIX}{}", self.name),
        }
    }

    /// Returns the policy converted from the object, if the mode of some of its ports differs from the mode of the
    /// others. `inherited` is the mode of the wider level.
    fn converted_policy(&self, inherited: Mode) -> Option<Authorization> {
        self.selector.as_ref()?;
        let whole = self.mode.unwrap_or(inherited);
        let different: Vec<u16> = self
            .ports
            .iter()
            .filter(|(_, mode)| **mode != whole)
            .map(|(port, _)| *port)
            .collect();
        if different.is_empty() {
            return None;
        }
        let plaintext = || {
            vec![Match {
                not_principals: vec![StringMatch::Presence],
                ..Match::default()
            }]
        };
        let rules = match whole {
            Mode::Strict => {
                let but = |port| {
                    vec![Match {
                        not_destination_ports: vec![port],
                        ..Match::default()
                    }]
                };
                let others = different.into_iter().map(but);
                vec![std::iter::once(plaintext()).chain(others).collect()]
            }
            Mode::Permissive => {
                let port = |port| {
                    vec![Match {
                        destination_ports: vec![port],
                        ..Match::default()
                    }]
                };
                different
                    .into_iter()
                    .map(|number| vec![plaintext(), port(number)])
                    .collect()
            }
        };
        let PolicyKey { namespace, name } = self.key();
        Some(Authorization {
            name,
            namespace,
            scope: Scope::WorkloadSelector,
            action: Action::Deny,
            rules,
            dry_run: false,
            not_understood: None,
        })
    }
}

/// Returns the shared policy that refuses all plaintext.
pub(crate) fn static_strict_policy(root_namespace: &ArcStr) -> Authorization {
    let plaintext = Match {
        not_principals: vec![StringMatch::Presence],
        ..Match::default()
    };
    Authorization {
        name: STATIC_STRICT_POLICY_NAME,
        namespace: root_namespace.clone(),
        scope: Scope::WorkloadSelector,
        action: Action::Deny,
        rules: vec![vec![vec![plaintext]]],
        dry_run: false,
        not_understood: None,
    }
}

/// Whether the shared policy is published: if there is any PeerAuthentication.
pub(crate) fn has_static_strict_policy(view: &MeshView) -> bool {
    let mut all = view.all_objects();
    all.any(|(_, objects)| !objects.all_of_kind::<PeerAuthentication>().is_empty())
}

/// Returns the oldest PeerAuthentication of a namespace without a selector.
fn namespace_policy(objects: &Objects) -> Option<&PeerAuthInput> {
    let policies = objects.all_of_kind::<PeerAuthentication>().values();
    policies
        .filter(|policy| policy.selector.is_none())
        .min_by(|a, b| a.precedence_key().cmp(&b.precedence_key()))
}

/// Returns the mode of a namespace, which workloads inherit.
fn inherited_mode(view: &MeshView, objects: &Objects) -> Mode {
    let own = namespace_policy(objects).and_then(|policy| policy.mode);
    let of_mesh = || {
        let root = view.objects(&view.config.root_namespace)?;
        namespace_policy(root)?.mode
    };
    own.or_else(of_mesh).unwrap_or_default()
}

impl MeshView {
    /// Returns the PeerAuthentication that makes a pod refuse plaintext, on all ports or on some.
    pub fn strict_peer_authentication(&self, pod: &ObjectKey) -> Option<ObjectKey> {
        let labels = &self.get::<Pod>(pod)?.labels;
        let objects = self.objects(&pod.namespace)?;
        strict_policy_for(self, &pod.namespace, objects, labels)?;
        let is_own = pod.namespace != self.config.root_namespace;
        let selected = selected_policy(objects, labels).filter(|_| is_own);
        let selected = selected.filter(|one| one.mode.is_some() || !one.ports.is_empty());
        let of_namespace = |objects| namespace_policy(objects).filter(|one| one.mode.is_some());
        let of_mesh = || namespace_policy(self.objects(&self.config.root_namespace)?);
        let origin = selected
            .or_else(|| of_namespace(objects))
            .or_else(of_mesh)?;
        let (namespace, name) = (origin.namespace.clone(), origin.name.clone());
        Some(ObjectKey::new(Kind::PeerAuthentication, namespace, name))
    }
}

/// Returns the oldest PeerAuthentication of a namespace whose selector matches the labels.
fn selected_policy<'a>(objects: &'a Objects, labels: &Labels) -> Option<&'a PeerAuthInput> {
    let policies = objects.all_of_kind::<PeerAuthentication>().values();
    policies
        .filter(|policy| {
            let selector = policy.selector.as_ref();
            selector.is_some_and(|selector| selects(selector, labels))
        })
        .min_by(|a, b| a.precedence_key().cmp(&b.precedence_key()))
}

/// Returns the policy that the workload's record lists, if the workload refuses plaintext on any port.
pub(crate) fn strict_policy_for(
    view: &MeshView,
    namespace: &ArcStr,
    objects: &Objects,
    labels: &Labels,
) -> Option<PolicyKey> {
    let root_namespace = &view.config.root_namespace;
    let inherited = inherited_mode(view, objects);
    let selected = selected_policy(objects, labels).filter(|_| namespace != root_namespace);
    if let Some(policy) = selected.filter(|policy| policy.converted_policy(inherited).is_some()) {
        return Some(policy.key());
    }
    let mode = selected.and_then(|policy| policy.mode).unwrap_or(inherited);
    (mode == Mode::Strict).then(|| PolicyKey {
        namespace: root_namespace.clone(),
        name: STATIC_STRICT_POLICY_NAME,
    })
}
