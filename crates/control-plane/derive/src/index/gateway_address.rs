//! The address that a Gateway of another controller is at.

use std::net::IpAddr;

use ambit_model::ArcStr;

/// Where a Gateway is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    /// At an address of the cluster's network.
    Ip(IpAddr),
    /// At a host name of its namespace.
    Host(ArcStr),
}
