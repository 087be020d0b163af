//! Telemetry of a finished request: conditions and labels in CEL ([`Expression`]), lines in Envoy's formats
//! ([`LogFormat`]), trace contexts of requests ([`trace`]), and spans ([`span`]).
//!
//! The crate does no IO: the waypoint fills in an [`RequestObservation`]. The control plane validates configuration
//! with the same code, and rejects what the waypoint could not use.
#![forbid(unsafe_code)]

mod expression;
mod format;
mod observation;
pub mod span;
pub mod trace;

pub use expression::{Expression, ExpressionError};
pub use format::{FormatError, ISTIO_JSON, ISTIO_TEXT, LogFormat};
pub use observation::{HeaderOrder, NeededHeaders, RequestObservation};
