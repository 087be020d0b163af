//! Names and addresses of the mesh's objects, and their text forms in WDS (`network/ip`, `namespace/hostname`).

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use arcstr::ArcStr;

/// xDS name of a workload, for instance `Kubernetes//Pod/default/client-1`.
pub type WorkloadUid = ArcStr;

/// Converts an IPv4-mapped IPv6 address to IPv4 and returns others unchanged.
pub fn canonical_ip(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

/// Converts the IP address of a socket address like [`canonical_ip`].
pub fn canonical_socket_address(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// Error of a text that is not a name in the expected format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct ParseNameError {
    text: String,
    expected: &'static str,
}

impl ParseNameError {
    pub(crate) fn new(text: &str, expected: &'static str) -> Self {
        Self {
            text: text.chars().take(256).collect(),
            expected,
        }
    }
}

/// Address in a network, formatted as `network/ip`. The default network has an empty name (`/10.0.0.1`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetworkAddress {
    /// Name of the network; empty for the cluster's default network.
    pub network: ArcStr,
    /// Canonical IP address (never IPv4-mapped).
    pub address: IpAddr,
}

impl NetworkAddress {
    /// Creates an address; converts an IPv4-mapped address to IPv4.
    pub fn new(network: impl Into<ArcStr>, address: IpAddr) -> Self {
        Self {
            network: network.into(),
            address: address.to_canonical(),
        }
    }
}

impl fmt::Display for NetworkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.address)
    }
}

impl FromStr for NetworkAddress {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.split_once('/')
            .and_then(|(network, ip)| Some(Self::new(network, ip.parse().ok()?)))
            .ok_or_else(|| ParseNameError::new(text, "<network>/<ip>"))
    }
}

/// Name of a service: its hostname and the namespace that declares it, formatted as `namespace/hostname`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespacedHostname {
    /// Namespace of the declaring object.
    pub namespace: ArcStr,
    /// Hostname, for instance `echo.default.svc.cluster.local`.
    pub hostname: ArcStr,
}

impl NamespacedHostname {
    /// Creates a service name from namespace and hostname.
    pub fn new(namespace: impl Into<ArcStr>, hostname: impl Into<ArcStr>) -> Self {
        Self {
            namespace: namespace.into(),
            hostname: hostname.into(),
        }
    }
}

impl fmt::Display for NamespacedHostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.hostname)
    }
}

impl FromStr for NamespacedHostname {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((namespace, hostname)) if !hostname.is_empty() && !hostname.contains('/') => {
                Ok(Self::new(namespace, hostname))
            }
            _ => Err(ParseNameError::new(text, "<namespace>/<hostname>")),
        }
    }
}

/// Destination in a [`GatewayAddress`]: an address or the name of a service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GatewayDestination {
    /// Address of a service (VIP) or workload.
    Address(NetworkAddress),
    /// Name of a service.
    Hostname(NamespacedHostname),
}

impl fmt::Display for GatewayDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Hostname(hostname) => hostname.fmt(f),
        }
    }
}

impl FromStr for GatewayDestination {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        text.parse().map(Self::Hostname)
    }
}

/// Address of a waypoint or network gateway.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GatewayAddress {
    /// Address or service name of the gateway.
    pub destination: GatewayDestination,
    /// HBONE port of the gateway, normally 15008.
    pub hbone_mtls_port: u16,
}

/// Name of a route object, formatted as `Kind/namespace/name`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteName {
    /// Kind of the object, for instance `HTTPRoute`.
    pub kind: ArcStr,
    /// Namespace of the route.
    pub namespace: ArcStr,
    /// Name of the route.
    pub name: ArcStr,
}

impl fmt::Display for RouteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.kind, self.namespace, self.name)
    }
}

/// Name of a waypoint's `Gateway` object, formatted as `namespace/name`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GatewayName {
    /// Namespace of the Gateway.
    pub namespace: ArcStr,
    /// Name of the Gateway.
    pub name: ArcStr,
}

impl GatewayName {
    /// Creates the name of a Gateway from namespace and name.
    pub fn new(namespace: impl Into<ArcStr>, name: impl Into<ArcStr>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for GatewayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for GatewayName {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((namespace, name))
                if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
            {
                Ok(Self::new(namespace, name))
            }
            _ => Err(ParseNameError::new(text, "<namespace>/<name>")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_parse_their_display_form() {
        for text in [
            "/10.0.0.1",
            "net/fd00::1",
            "default/echo.default.svc.cluster.local",
        ] {
            assert_eq!(
                text.parse::<GatewayDestination>().unwrap().to_string(),
                text
            );
        }
        assert!(matches!(
            "/10.0.0.1".parse(),
            Ok(GatewayDestination::Address(_))
        ));
    }

    #[test]
    fn a_workload_uid_is_not_a_hostname() {
        assert!(
            "Kubernetes//Pod/default/a"
                .parse::<NamespacedHostname>()
                .is_err()
        );
    }

    #[test]
    fn mapped_addresses_become_ipv4() {
        let mapped = NetworkAddress::new("", "::ffff:10.0.0.1".parse().unwrap());
        assert_eq!(mapped.to_string(), "/10.0.0.1");
    }
}
