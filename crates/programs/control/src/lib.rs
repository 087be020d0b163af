//! The control plane: derives the mesh's records from Kubernetes objects, serves delta xDS, and is the CA.
//!
//! [`source`] reads objects, from files or from [`kubernetes`]; the pure crate `ambit_derive` derives records from
//! them; [`mesh`] passes the objects to it and publishes the records. `ambit_xds_server` and `ambit_ca` serve over one
//! gRPC port (`ambit_grpc_listener`), and `ambit_caller_auth` decides who may call them. `ambit_status_writer` writes
//! conditions for operators, `ambit_waypoint_deployer` deploys waypoints, [`flows`] serves flow events to users,
//! [`startup_taint`] removes the startup taint from nodes, and [`restart_backoff`] replaces pods whose restart the
//! kubelet delays. [`environment`] has the client, leases and CA that all of them share; [`run`] starts everything.
#![forbid(unsafe_code)]

pub mod args;
pub mod change;
pub mod environment;
pub mod flows;
mod key_sets;
pub mod kubernetes;
mod leadership;
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
