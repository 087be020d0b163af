//! Telemetry of a waypoint's requests: Istio's request metrics ([`HttpMetrics`]) and its access log
//! ([`HttpRequestReport`]).
//!
//! No label's value comes from a request: workloads and services are records of the mesh, codes and flags are few. No
//! text of a request is logged without escaping: see [`AccessLogFormat`].

mod destinations;
mod flags;
mod histogram;
mod labels;
mod metrics;
mod relabel;
mod report;

pub use destinations::DestinationMetrics;
pub use flags::{ResponseFlag, ResponseFlags};
pub use labels::{HttpLabels, RequestProtocol, ResponseCode};
pub use metrics::{ExportOutcome, ExportSignal, HttpMetrics, MirrorOutcome};
pub use relabel::{FamilyOverrides, MetricOverrides, RelabeledValues};
pub use report::{AccessLogFormat, HttpRequestReport};
