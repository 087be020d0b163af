//! PeerAuthentication: which workloads refuse plaintext, and on which ports.
//!
//! Three levels: the mesh (root namespace, no selector), a namespace (no selector), workloads (by
//! selector). Of several on one level the oldest counts. A level that is unset takes the mode of the
//! level above. Refusing plaintext is a DENY policy of everything that has no identity: one static
//! policy for whole workloads, one of its own for each PeerAuthentication whose ports differ.

use std::collections::BTreeMap;

use ambit_k8s_api::{
    PeerAuthentication,
    istio::{MtlsMode, selected_labels},
};
use ambit_model::{Action, ArcStr, Authorization, Match, PolicyKey, Scope, StringMatch};

use super::{Labels, MeshConfig, services::created};
use crate::problems::{FieldError, Note};

/// Name of the policy that refuses all plaintext, in the root namespace.
const STATIC_STRICT: ArcStr = arcstr::literal!("istio_converted_static_strict");
/// Beginning of the names of policies made for one PeerAuthentication.
pub(crate) const CONVERTED: &str = "converted_peer_authentication_";

/// A PeerAuthentication as the mesh sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PeerAuthInput {
    pub(crate) name: ArcStr,
    pub(crate) namespace: ArcStr,
    pub(crate) selector: Option<Labels>,
    mode: Option<Mode>,
    /// Only ports that are set.
    ports: BTreeMap<u16, Mode>,
    created: String,
}

/// Whether plaintext is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    #[default]
    Permissive,
    Strict,
}

fn mode(mode: MtlsMode) -> Option<Mode> {
    match mode {
        MtlsMode::Unset => None,
        MtlsMode::Disable | MtlsMode::Permissive => Some(Mode::Permissive),
        MtlsMode::Strict => Some(Mode::Strict),
    }
}

impl PeerAuthInput {
    pub(crate) fn read(
        policy: &PeerAuthentication,
        config: &MeshConfig,
    ) -> Result<(Self, Vec<Note>), FieldError> {
        let spec = &policy.spec;
        let mut notes = Vec::new();
        let namespace: ArcStr = policy
            .metadata
            .namespace
            .as_deref()
            .unwrap_or("default")
            .into();
        let selector = selected_labels(spec.selector.as_ref()).cloned();
        if selector.is_some() && namespace == config.root_namespace {
            notes.push(Note::new(
                "spec.selector",
                "a selector in the root namespace has no effect; put the object into the workloads' namespace",
            ));
        }
        let mut ports = BTreeMap::new();
        for (text, setting) in &spec.port_level_mtls {
            let field = format!("spec.portLevelMtls[{text}]");
            if selector.is_none() {
                return Err(FieldError::new(
                    field,
                    "ports can only be set together with spec.selector",
                ));
            }
            let port = text
                .parse::<u16>()
                .ok()
                .filter(|port| *port != 0)
                .ok_or_else(|| {
                    FieldError::new(field, format!("{text:?} is not a port, 1 to 65535"))
                })?;
            if let Some(mode) = mode(setting.mode) {
                ports.insert(port, mode);
            }
        }
        Ok((
            Self {
                name: policy.metadata.name.as_deref().unwrap_or_default().into(),
                namespace,
                selector,
                mode: spec.mtls.and_then(|mtls| mode(mtls.mode)),
                ports,
                created: created(&policy.metadata),
            },
            notes,
        ))
    }

    /// What stands in for one that was never readable since the start: no plaintext.
    pub(crate) fn stand_in(policy: &PeerAuthentication) -> Self {
        Self {
            name: policy.metadata.name.as_deref().unwrap_or_default().into(),
            namespace: policy
                .metadata
                .namespace
                .as_deref()
                .unwrap_or("default")
                .into(),
            selector: selected_labels(policy.spec.selector.as_ref()).cloned(),
            mode: Some(Mode::Strict),
            ports: BTreeMap::new(),
            created: created(&policy.metadata),
        }
    }

    fn age(&self) -> (&str, &str) {
        (&self.created, &self.name)
    }

    fn key(&self) -> PolicyKey {
        PolicyKey {
            namespace: self.namespace.clone(),
            name: arcstr::format!("{CONVERTED}{}", self.name),
        }
    }

    /// The policy for its ports, if some differ from the rest.
    pub(crate) fn converted(&self, inherited: Mode) -> Option<Authorization> {
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
                not_principals: vec![StringMatch::Presence([])],
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

/// The static policy.
pub(crate) fn static_strict(root_namespace: &ArcStr) -> Authorization {
    let plaintext = Match {
        not_principals: vec![StringMatch::Presence([])],
        ..Match::default()
    };
    Authorization {
        name: STATIC_STRICT,
        namespace: root_namespace.clone(),
        scope: Scope::WorkloadSelector,
        action: Action::Deny,
        rules: vec![vec![vec![plaintext]]],
        dry_run: false,
        not_understood: None,
    }
}

/// The oldest of those without selector.
pub(crate) fn of_namespace<'a>(
    policies: impl Iterator<Item = &'a PeerAuthInput>,
) -> Option<&'a PeerAuthInput> {
    policies
        .filter(|policy| policy.selector.is_none())
        .min_by(|a, b| a.age().cmp(&b.age()))
}

/// The mode of a namespace, before workloads' own.
pub(crate) fn inherited(mesh: Option<&PeerAuthInput>, namespace: Option<&PeerAuthInput>) -> Mode {
    let mode = |policy: Option<&PeerAuthInput>| policy.and_then(|policy| policy.mode);
    mode(namespace).or_else(|| mode(mesh)).unwrap_or_default()
}

/// The policy that a workload lists, if it refuses any plaintext.
pub(crate) fn for_workload<'a>(
    policies: impl Iterator<Item = &'a PeerAuthInput>,
    inherited: Mode,
    namespace: &ArcStr,
    labels: &Labels,
    root_namespace: &ArcStr,
) -> Option<PolicyKey> {
    let selected = policies
        .filter(|_| namespace != root_namespace)
        .filter(|policy| {
            policy
                .selector
                .as_ref()
                .is_some_and(|selector| super::selects(selector, labels))
        })
        .min_by(|a, b| a.age().cmp(&b.age()));
    if let Some(policy) = selected.filter(|policy| policy.converted(inherited).is_some()) {
        return Some(policy.key());
    }
    let mode = selected.and_then(|policy| policy.mode).unwrap_or(inherited);
    (mode == Mode::Strict).then(|| PolicyKey {
        namespace: root_namespace.clone(),
        name: STATIC_STRICT,
    })
}
