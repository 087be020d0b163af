//! The CNI plugin: holds a pod's start until its redirection stands.
//!
//! Chained after any primary plugin. It decides whether the pod belongs to the mesh by asking the
//! node agent over its socket (with a file the agent keeps, when the agent is away), posts mesh pods
//! to the agent and waits. It knows no Kubernetes API, keeps no state, and changes nothing by itself.
//!
//! A small static binary: `RUSTFLAGS="-C target-feature=+crt-static" cargo build --release -p
//! ambit-cni --target x86_64-unknown-linux-gnu`.
#![forbid(unsafe_code)]

mod add;
mod agent;
mod command;
mod config;
mod error;
mod http;
mod membership;
mod result;

pub use command::{Environment, dry_run, run};
pub use error::{CniError, code};
