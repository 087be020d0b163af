//! Metric families and the access log, with the names that Istio's dashboards use.
//!
//! The crate knows nothing of sockets or routing: the data path fills in values. [`Metrics`] has every family of a
//! node proxy; [`TrafficSeries`] has the counters of one pair of workloads; [`AccessLog`] is one connection's line.
//! Telemetry of a waypoint's requests is in [`http`].
#![forbid(unsafe_code)]

mod access_log;
mod families;
mod flows;
pub mod http;
mod labels;
mod retired_series;
mod traffic;

pub use access_log::{AccessLog, Direction, log_denied};
pub use families::{
    ArcStrLabel, DnsLabels, Metrics, PreCaptureCloseCause, SocketGuard, XdsTermination,
};
pub use flows::{FlowReader, Flows, ProxyIdentity, ReaderKind};
pub use labels::{Reporter, SecurityPolicy, ServiceName, TrafficLabels, WorkloadLabels};
pub use traffic::{ConnectionMetrics, Traffic, TrafficSeries};
