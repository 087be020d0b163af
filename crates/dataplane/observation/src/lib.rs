//! Telemetry of a finished request: conditions and labels in CEL ([`Expression`]), lines in Envoy's formats
//! ([`Format`]), trace contexts as they come and go ([`trace`]), and spans ([`span`]).
//!
//! Pure: who sees requests fills in an [`Observation`]. What is configured is checked by the same code in the control
//! plane, which refuses what cannot be used, and at the waypoint, which uses it.
#![forbid(unsafe_code)]

mod expression;
mod format;
mod observation;
pub mod span;
pub mod trace;

pub use expression::{Expression, ExpressionError};
pub use format::{Format, FormatError, ISTIO_JSON, ISTIO_TEXT};
pub use observation::{HeaderOrder, Observation, Wants};
