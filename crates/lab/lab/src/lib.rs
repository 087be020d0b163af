//! The whole mesh on one machine: real binaries, namespaces for nodes and pods.
//!
//! A supervisor process plays the API server, the scheduler and the kubelets for a directory of
//! ordinary manifests; everything it starts is in its own namespaces, and ends with it. [`launch`] creates
//! them, [`cluster`] decides (pure), [`supervisor`] carries out, and [`client`] sends requests to a
//! running lab.
#![forbid(unsafe_code)]

mod addresses;
mod announcement;
mod board;
mod capture;
pub mod client;
mod cluster;
mod cni;
mod cni_plugin;
mod containers;
mod daemon;
mod dns;
mod fabric;
mod get;
mod launch;
mod layout;
mod mesh;
mod options;
mod pods;
mod probes;
mod protocol;
mod server;
mod services;
mod shim;
mod state_dir;
mod supervisor;
mod tokens;

pub use capture::{Capture, FlowKind, FlowReport, Traffic};
pub use client::{Client, ClientError, ExecOutput};
pub use cni_plugin::{PLUGIN_NAME, run_plugin};
pub use get::{Ending, Expected, denials};
pub use launch::{LaunchError, Stage, launch, run_stage};
pub use options::{IpFamily, MAX_NODES, Options, PrimaryCni};
pub use protocol::{
    ContainerStatus, DaemonStatus, LabNetns, LogSource, NodeStatus, PodStatus, Replacement, Status,
};
pub use shim::run_shim;
pub use state_dir::{StateDir, StateError, base_directory};
