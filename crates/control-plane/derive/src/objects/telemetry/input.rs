//! Parsed Telemetry object.

use ambit_k8s_api::ObjectKey;

use crate::objects::telemetry::read::{AccessLogSettings, MetricSettings, TracingSettings};

/// Parsed Telemetry object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TelemetryInput {
    pub(crate) key: ObjectKey,
    pub(crate) created: String,
    /// Objects that `targetRefs` name; if empty, the whole namespace, or from the root namespace the whole mesh.
    pub(crate) targets: Vec<ObjectKey>,
    pub(crate) tracing: Vec<TracingSettings>,
    pub(crate) logs: Vec<AccessLogSettings>,
    pub(crate) metrics: Vec<MetricSettings>,
}
