//! The control plane: derives the mesh from Kubernetes objects, serves delta xDS, is the CA.
//!
//! [`source`] gives objects, from files or from [`kubernetes`]; what they mean is derived by the pure crate
//! `ambit_derive`; [`mesh`] feeds it and publishes the records. `ambit_xds_server` and `ambit_ca` serve over one gRPC
//! port (`ambit_grpc_listener`), and `ambit_caller_auth` decides who may call them. `ambit_status_writer` writes
//! conditions for operators, `ambit_waypoint_deployer` deploys waypoints, [`flows`] serves flow events to users,
//! [`startup_taint`] lifts the taint for the scheduler, and [`restart_backoff`] replaces pods that kubelet holds back.
//! [`environment`] is what all of it is built on; [`run`] puts it together.
#![forbid(unsafe_code)]

pub mod args;
pub mod change;
pub mod environment;
pub mod flows;
mod key_sets;
pub mod kubernetes;
mod leading;
pub mod mesh;
pub mod metrics;
pub mod monitoring;
mod restart_backoff;
pub mod run;
pub mod serving;
pub mod source;
mod startup_taint;

#[cfg(test)]
mod tests;
