//! The node agent: decides which pods of its node belong to the mesh, installs and removes their redirection, and
//! orders the node proxies which pods to serve.
//!
//! [`enrolment`] is the pure state machine that compares the desired with the observed state and returns the next step
//! for each pod; [`actions`] changes the kernel; [`zds`] serves the proxies; [`plugin`] serves the CNI plugin;
//! [`source`] sends pods and namespaces. The agent stores no state of its own: after a restart everything is derived
//! again from source and kernel.
#![forbid(unsafe_code)]

pub mod actions;
pub mod capture;
pub mod config;
mod enrolled;
pub mod enrolment;
pub mod install;
mod installing;
pub mod membership;
pub mod metrics;
pub mod plugin;
mod process;
mod replace;
pub mod report;
pub mod source;
pub mod status;
mod supervisor;
pub mod zds;

pub use process::{RunError, run, run_with};
pub use supervisor::{SuperviseError, supervise};
