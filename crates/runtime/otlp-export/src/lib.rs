//! A program's own metrics and logs, pushed to an OpenTelemetry collector (OTLP) that its environment names.
//!
//! It exports the metrics that Prometheus scrapes ([`metrics`]) and the log records of standard
//! output ([`records`]). Variables are OpenTelemetry's own ([`settings`]); without them nothing is
//! started, registered or recorded. The exporter never blocks its program: records wait in a
//! [bounded queue](queue), metrics are read when they are sent, and an unavailable, slow or hostile
//! collector only loses records, which are counted.
//!
//! The crate knows nothing of meshes. Spans and access logs that Istio's Telemetry sends to collectors are the
//! waypoint's own (`ambit-otlp`).
#![forbid(unsafe_code)]

mod client;
mod exporter;
mod exposition;
mod message;
mod metrics;
mod own_metrics;
mod queue;
mod records;
mod resource;
mod retry;
mod settings;
mod tls;

pub use exporter::{Exporter, RunningExporter};
pub use message::rejected;
pub use settings::SettingsError;
pub use tls::TlsError;
