//! An object as it is understood.

use ambit_k8s_api::ObjectKey;

use super::read::{LogPart, MetricPart, TracingPart};

/// An object as the mesh sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TelemetryInput {
    pub(super) key: ObjectKey,
    pub(super) created: String,
    /// Targets of the object; its whole namespace if empty, or the mesh.
    pub(super) targets: Vec<ObjectKey>,
    pub(super) tracing: Vec<TracingPart>,
    pub(super) logs: Vec<LogPart>,
    pub(super) metrics: Vec<MetricPart>,
}
