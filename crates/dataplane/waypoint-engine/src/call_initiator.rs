//! Callers whose requests make the waypoint itself call a service, such as an authorization provider.

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
