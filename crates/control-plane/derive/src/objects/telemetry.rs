//! Parsing of Telemetry objects.

pub(crate) mod input;
pub(crate) mod read;

use ambit_k8s_api::{Kind, ObjectKey, Telemetry, created};

use crate::{
    config::MeshConfig,
    objects::{
        readable::{FetchExtent, FetchedKind, Parsed, Readable},
        targets::{PolicyTargets, target_references},
        telemetry::input::TelemetryInput,
    },
    problem::{FieldError, Note},
};

impl FetchedKind for Telemetry {
    const FETCH_EXTENT: FetchExtent = FetchExtent::Whole { labels: None };
}

impl Readable for Telemetry {
    type Input = TelemetryInput;

    fn read(&self, config: &MeshConfig) -> Result<Parsed<TelemetryInput>, FieldError> {
        let mut notes = Vec::new();
        let spec = &self.spec;
        let namespace = self.metadata.namespace.as_deref().unwrap_or("default");
        let name = self.metadata.name.as_deref().unwrap_or_default();
        let key = ObjectKey::new(Kind::Telemetry, namespace, name);
        let references = target_references(spec.target_ref.as_ref(), &spec.target_refs);
        let PolicyTargets(targets) = PolicyTargets::read(references, &key.namespace, config)?;
        let input = TelemetryInput {
            key,
            created: created(&self.metadata),
            targets,
            tracing: read::parse_tracing(&spec.tracing, &mut notes)?,
            logs: read::parse_access_logging(&spec.access_logging, &mut notes)?,
            metrics: read::parse_metrics(&spec.metrics, &mut notes)?,
        };
        if spec.selector.is_some() {
            let message = "settings for selected pods are for sidecars: waypoints do not follow them; use targetRefs";
            notes.push(Note::new("spec.selector", message));
            return Ok(Parsed::new(None, notes));
        }
        Ok(Parsed::new(Some(input), notes))
    }
}
