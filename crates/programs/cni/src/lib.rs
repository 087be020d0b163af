//! The CNI plugin: holds a pod's start until its redirection stands.
//!
//! It decides whether the pod belongs to the mesh by asking the node agent over its socket (with a file
//! the agent keeps, when the agent is away), posts mesh pods to the agent and waits. It knows no
//! Kubernetes API, holds no credential, and changes nothing by itself.
//!
//! It is reached in one of two ways. *Chained*, its entry is the last of the primary CNI's own list.
//! *Owned*, a configuration of the agent's that comes before the primary's names this plugin alone:
//! then it first calls what the primary's configuration says at that moment (`delegate.rs`), so that
//! whoever rewrites that configuration cannot drop the mesh. What was called for a pod is remembered
//! (`attachment.rs`), since the same is to be called when the pod ends.
//!
//! Uninstalled, the file stays where the runtime keeps the list a pod was started with and calls every
//! plugin of it when the pod ends: that needs no agent.
//!
//! A small static binary: `RUSTFLAGS="-C target-feature=+crt-static" cargo build --release -p
//! ambit-cni --target x86_64-unknown-linux-gnu`.
#![forbid(unsafe_code)]

mod add;
mod agent;
mod attachment;
mod command;
mod config;
mod delegate;
mod error;
mod exec;
mod http;
mod log;
mod membership;
mod result;

pub use command::{Environment, dry_run, run};
pub use error::{CniError, code};
