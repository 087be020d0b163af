//! The chart of Ambit, rendered here as Helm renders it, applied to a cluster, and taken away again.
#![forbid(unsafe_code)]

pub mod chart;
pub mod object;
pub mod render;
pub mod schema;
pub mod values;
