//! The node proxy: one proxy instance a pod, mTLS tunnels, L4 authorization.
//!
//! A [`supervisor`] process holds the pods' sockets and runs the proxy proper as its worker. In
//! the worker, the main thread follows the control plane and the node agent, keeps certificates, and answers
//! admin requests; the worker threads carry connections. Never talks to the Kubernetes API.
#![forbid(unsafe_code)]

pub mod admin;
pub mod app;
mod clear;
pub mod command;
pub mod config;
pub mod config_dump;
pub mod connections;
mod dns;
pub mod dns_capture;
mod double;

mod enrolled;
pub mod gate;
pub mod held;
mod inbound;
pub mod journal;
mod kept;
pub mod local_xds;
mod outbound;
mod plaintext;
pub mod pod;
pub mod pods;
mod policy_metrics;
pub mod report;
mod rollout;
mod shard;
mod standing;
pub mod state;
pub mod supervisor;
mod termination;
pub mod under_way;
pub mod workers;
