//! The whole mesh on one machine: real binaries, namespaces for nodes and pods.
//!
//! A supervisor process plays the API server, the scheduler and the kubelets for a directory of ordinary manifests;
//! everything it starts is in its own namespaces, and ends with it. [`launch`] creates them, [`cluster`] decides
//! without I/O, [`supervisor`] carries the decisions out, and [`client`] sends requests to a running lab.
//!
//! Labs need Linux. On other systems, the crate contains only the client: the command line compiles, but finds no lab.
#![forbid(unsafe_code)]

mod capture;
pub mod client;
mod get;
mod layout;
mod options;
mod protocol;
mod state_dir;

#[cfg(target_os = "linux")]
mod addresses;
#[cfg(target_os = "linux")]
mod announcement;
#[cfg(target_os = "linux")]
mod cgroups;
#[cfg(target_os = "linux")]
mod cluster;
#[cfg(target_os = "linux")]
mod cni;
#[cfg(target_os = "linux")]
mod cni_plugin;
#[cfg(target_os = "linux")]
mod containers;
#[cfg(target_os = "linux")]
mod daemon;
#[cfg(target_os = "linux")]
mod dns;
#[cfg(target_os = "linux")]
mod fabric;
#[cfg(target_os = "linux")]
mod lab_state;
#[cfg(target_os = "linux")]
mod launch;
#[cfg(target_os = "linux")]
mod mesh;
#[cfg(target_os = "linux")]
mod pod_socket;
#[cfg(target_os = "linux")]
mod pods;
#[cfg(target_os = "linux")]
mod probes;
#[cfg(target_os = "linux")]
mod server;
#[cfg(target_os = "linux")]
mod services;
#[cfg(target_os = "linux")]
mod shim;
#[cfg(target_os = "linux")]
mod supervisor;
#[cfg(target_os = "linux")]
mod tokens;

pub use capture::{Capture, FlowKind, FlowReport, Traffic};
pub use client::{Client, ClientError, ExecOutput};
pub use get::{ExpectedOutcome, GetOutcome, LAB_TOOL, count_denials};
pub use options::{IpFamily, MAX_NODES, Options, PrimaryCni};
pub use protocol::{
    ContainerStatus, DaemonStatus, LabNetns, LogSource, NodeStatus, PodStatus, Replacement, Status,
};
pub use state_dir::{StateDir, StateError, base_directory};

#[cfg(target_os = "linux")]
pub use cni_plugin::{PLUGIN_NAME, run_plugin};
#[cfg(target_os = "linux")]
pub use launch::{LaunchError, Stage, launch, run_stage};
#[cfg(target_os = "linux")]
pub use shim::run_shim;
