//! The node proxy: one proxy instance for each pod, mTLS tunnels, L4 authorization.
//!
//! A [supervisor](ambit_handover) process holds the pods' sockets and runs the proxy proper as its
//! worker. In the worker, the main thread follows the control plane and the node agent, renews
//! certificates, and serves admin requests; the worker threads carry connections. Code that is not
//! about pods is in [`ambit_proxy`] and [`ambit_handover`]. Never calls the Kubernetes API.
#![forbid(unsafe_code)]

mod admission;
pub mod app;
mod application;
pub mod command;
pub mod config;
mod dns_capture;
mod enrolment_record;
mod explain;
mod inbound;
mod outbound;
mod plaintext;
pub mod pod;
mod pod_handover;
pub mod pods;
mod pre_capture;
mod redirection;
mod refusal;
mod serving;
mod shard;
mod termination;
