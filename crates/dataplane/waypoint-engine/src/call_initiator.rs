//! Callers whose requests cause calls of the waypoint itself.

use std::net::IpAddr;

use ambit_model::Identity;

use crate::memory::ConnectionMemory;

/// Caller whose request makes the waypoint call another service.
#[derive(Clone, Debug)]
pub(crate) struct CallInitiator {
    pub(crate) identity: Option<Identity>,
    pub(crate) ip: IpAddr,
    /// Memory budget to which the call is charged.
    pub(crate) memory: ConnectionMemory,
}
