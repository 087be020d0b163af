//! Telemetry of a finished request: conditions and labels in CEL ([`Expression`]), access-log lines in Envoy's formats
//! ([`LogFormat`]), incoming and forwarded trace contexts ([`trace`]), and spans ([`span`]).
//!
//! The crate does no IO: the waypoint fills in a [`RequestObservation`] for each request. The control plane validates
//! configuration with the same code, and rejects settings that the waypoint could not use.
#![forbid(unsafe_code)]

mod expression;
mod format;
mod observation;
pub mod span;
pub mod trace;

pub use expression::{Expression, ExpressionError};
pub use format::{FormatError, ISTIO_JSON_FORMAT, ISTIO_TEXT_FORMAT, LogFormat};
pub use observation::{NeededHeaders, OrderedHeaderName, RequestObservation};
