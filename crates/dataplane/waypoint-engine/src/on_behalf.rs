//! Callers whose requests cause calls of the waypoint itself.

use std::net::IpAddr;

use ambit_model::Identity;

use crate::memory::ConnectionMemory;

/// Caller of the request that a call of the waypoint's own is made for.
#[derive(Clone, Debug)]
pub(crate) struct OnBehalf {
    pub(crate) identity: Option<Identity>,
    pub(crate) ip: IpAddr,
    /// Budget that the call is charged to.
    pub(crate) memory: ConnectionMemory,
}
