//! Callers whose requests cause calls of the waypoint itself.

use std::net::IpAddr;

use ambit_model::Identity;

use crate::memory::ConnectionMemory;

/// Caller of the request for which the waypoint makes a call.
#[derive(Clone, Debug)]
pub(crate) struct OnBehalf {
    pub(crate) identity: Option<Identity>,
    pub(crate) ip: IpAddr,
    /// Budget to which the call is charged.
    pub(crate) memory: ConnectionMemory,
}
