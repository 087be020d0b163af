//! An object as it is understood.

use ambit_k8s_api::ObjectKey;

use crate::objects::telemetry::read::{LogPart, MetricPart, TracingPart};

/// An object as the mesh sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TelemetryInput {
    pub(crate) key: ObjectKey,
    pub(crate) created: String,
    /// Targets of the object; its whole namespace if empty, or the mesh.
    pub(crate) targets: Vec<ObjectKey>,
    pub(crate) tracing: Vec<TracingPart>,
    pub(crate) logs: Vec<LogPart>,
    pub(crate) metrics: Vec<MetricPart>,
}
