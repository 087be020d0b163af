//! The node proxy: one proxy instance a pod, mTLS tunnels, L4 authorization.
//!
//! The main thread follows the control plane and the node agent, keeps certificates, and answers
//! admin requests; the worker threads carry connections. Never talks to the Kubernetes API.
#![forbid(unsafe_code)]

pub mod admin;
pub mod app;
pub mod config;
pub mod config_dump;
pub mod connections;
mod dns;
mod double;
mod inbound;
pub mod local_xds;
mod outbound;
mod plaintext;
pub mod pod;
pub mod pods;
pub mod report;
mod shard;
pub mod state;
pub mod workers;
