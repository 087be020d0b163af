//! The CNI plugin: delays a pod's start until its redirection is in place.
//!
//! It queries the node agent over its socket whether the pod belongs to the mesh (or reads the agent's membership file
//! while the agent is away), posts mesh pods to the agent and waits. It uses no Kubernetes API, holds no credential,
//! and changes nothing by itself.
//!
//! It is installed in one of two ways. *Chained*: its entry is the last of the primary CNI's own list.
//! *Owned*: a configuration of the agent's that sorts before the primary's names this plugin alone. The
//! plugin then first calls the plugins of the primary's current configuration (`delegate.rs`), so that
//! rewriting that configuration cannot drop the mesh. The plugins called for a pod are recorded
//! (`attachment.rs`), since the same ones must be called when the pod ends.
//!
//! After uninstallation the binary stays on nodes whose runtime keeps the list a pod was started with
//! and calls every plugin of it when the pod ends. That needs no agent.
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
mod environment;
mod error;
mod exec;
mod http;
mod log;
mod membership;
mod result;

pub use command::{dry_run, run};
pub use environment::Environment;
pub use error::{CniError, code};
