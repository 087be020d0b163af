//! The node proxy: one proxy instance a pod, mTLS tunnels, L4 authorization.
#![forbid(unsafe_code)]

pub mod config_dump;
pub mod local_xds;
pub mod state;
