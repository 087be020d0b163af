//! Parsing of PeerAuthentications.

use std::collections::BTreeMap;

use ambit_k8s_api::{
    ObjectMeta, PeerAuthentication, created,
    istio::{MtlsMode, PeerAuthenticationSpec, selected_labels},
};
use ambit_model::ArcStr;
use serde_json::Value;

use crate::{
    config::MeshConfig,
    labels::Labels,
    objects::readable::{FetchExtent, FetchedKind, Parsed, Readable, deserialize_field},
    problem::{FieldError, Note},
};

impl FetchedKind for PeerAuthentication {
    const FETCH_EXTENT: FetchExtent = FetchExtent::Whole { labels: None };
}

impl Readable for PeerAuthentication {
    type Input = PeerAuthInput;

    fn read(&self, config: &MeshConfig) -> Result<Parsed<PeerAuthInput>, FieldError> {
        let (input, notes) = PeerAuthInput::read(self, config)?;
        Ok(Parsed::new(Some(input), notes))
    }

    fn substitute(&self, _: &MeshConfig) -> Option<PeerAuthInput> {
        Some(PeerAuthInput::substitute(self))
    }

    /// Reads the selector of the policy alone; without a readable selector, the scope is the whole namespace.
    fn readable_part(metadata: ObjectMeta, spec: Option<&Value>) -> Option<Self> {
        Some(Self {
            metadata,
            spec: PeerAuthenticationSpec {
                selector: deserialize_field(spec, "selector"),
                ..PeerAuthenticationSpec::default()
            },
            ..Self::default()
        })
    }
}

/// Parsed PeerAuthentication object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PeerAuthInput {
    pub(crate) name: ArcStr,
    pub(crate) namespace: ArcStr,
    pub(crate) selector: Option<Labels>,
    pub(crate) mode: Option<Mode>,
    /// Modes of `portLevelMtls`, without ports whose mode is unset.
    pub(crate) ports: BTreeMap<u16, Mode>,
    created: String,
}

/// mTLS mode of a workload or port: whether plaintext is refused.
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
    fn read(
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

    /// Builds the fail-closed substitute, which refuses plaintext (STRICT) in the policy's scope.
    fn substitute(policy: &PeerAuthentication) -> Self {
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

    pub(crate) fn precedence_key(&self) -> (&str, &str) {
        (&self.created, &self.name)
    }
}
