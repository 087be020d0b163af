//! Renders the chart of Ambit as Helm does, applies it to a cluster, and removes it again.
#![forbid(unsafe_code)]

pub mod apply;
pub mod attachment;
pub mod chart;
pub mod cluster;
pub mod diagnose;
pub mod error;
pub mod gateway_api;
mod images;
pub mod inventory;
pub mod istio_values;
pub mod object;
mod ownership;
pub mod plan;
pub mod platform;
pub mod remove;
pub mod render;
pub mod rollout;
pub mod schema;
pub mod values;
