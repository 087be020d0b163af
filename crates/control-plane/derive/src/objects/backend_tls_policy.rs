//! Parsing of BackendTLSPolicies.

pub(crate) mod input;
pub(crate) mod read;

use ambit_k8s_api::{BackendTLSPolicy, ObjectKey, ObjectMeta, gateway::BackendTlsPolicySpec};
use serde_json::Value;

use crate::{
    config::MeshConfig,
    objects::{
        backend_tls_policy::input::{BackendTlsInput, InvalidPolicyReason},
        readable::{FetchExtent, FetchedKind, Parsed, Readable, deserialize_field},
    },
    problem::FieldError,
};

impl FetchedKind for BackendTLSPolicy {
    const FETCH_EXTENT: FetchExtent = FetchExtent::Whole { labels: None };
}

impl Readable for BackendTLSPolicy {
    type Input = BackendTlsInput;

    fn read(&self, _: &MeshConfig) -> Result<Parsed<BackendTlsInput>, FieldError> {
        Ok(Parsed::without_notes(read::parse_policy(self)))
    }

    fn substitute(&self, _: &MeshConfig) -> Option<BackendTlsInput> {
        let error = FieldError::new("spec", "cannot be read");
        Some(BackendTlsInput {
            tls: Err(InvalidPolicyReason::from_field_error(&error)),
            ..read::parse_policy(self)
        })
    }

    fn readable_part(metadata: ObjectMeta, spec: Option<&Value>) -> Option<Self> {
        Some(Self {
            metadata,
            spec: BackendTlsPolicySpec {
                target_refs: deserialize_field(spec, "targetRefs").unwrap_or_default(),
                ..BackendTlsPolicySpec::default()
            },
            ..Self::default()
        })
    }
}

impl BackendTlsInput {
    /// Returns the objects that the policy's `targetRefs` name.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &ObjectKey> {
        self.targets.iter().map(|target| &target.key)
    }

    pub(crate) fn precedence_key(&self) -> (&str, &str) {
        (&self.created, &self.key.name)
    }

    pub(crate) fn refers_to_config_map(&self, map: &str) -> bool {
        let roots = self
            .tls
            .as_ref()
            .ok()
            .and_then(|tls| tls.ca_config_maps.as_ref());
        roots.is_some_and(|names| names.iter().any(|name| name == map))
    }
}
