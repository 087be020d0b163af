//! Key of pooled connections: requests share a connection only if all parts of their keys are equal.

use std::net::{IpAddr, SocketAddr};

use ambit_model::Identity;

use crate::{
    applied_services::AppliedServices,
    message::Version,
    tls_origination::TlsKey,
    upstream::{next_hop::Upstream, proxy_protocol::ProxyProtocolHeader},
};

/// Key by which HTTP connections are pooled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HttpKey {
    /// Address of the TCP connection, or of the tunnel's next hop.
    peer_address: SocketAddr,
    /// Authority of the CONNECT and accepted identities of the next hop; `None` in plaintext.
    tunnel: Option<(String, Vec<Identity>)>,
    pub(super) version: Version,
    /// TLS settings of the connection, if the waypoint originates TLS.
    tls: Option<TlsKey>,
    /// Caller that has exclusive use of an HTTP/2 connection.
    caller: Option<(Option<Identity>, IpAddr)>,
    /// Identity under which the connection was opened; `None` for the waypoint's own.
    identity: Option<Identity>,
    /// Services whose attachments this waypoint has applied, named in the CONNECT of the connection.
    applied_services: AppliedServices,
    /// PROXY protocol header at the start of the connection.
    preamble: Option<ProxyProtocolHeader>,
}

impl HttpKey {
    pub(crate) fn new(upstream: &Upstream, version: Version) -> Self {
        let (peer, tunnel) = match upstream {
            Upstream::Plain(peer, _) => (*peer, None),
            Upstream::Tunnel(route) => {
                let tunnel = (route.authority.clone(), route.expected_identities.to_vec());
                (route.addr, Some(tunnel))
            }
        };
        Self {
            peer_address: peer,
            tunnel,
            version,
            tls: None,
            caller: None,
            identity: None,
            applied_services: AppliedServices::default(),
            preamble: None,
        }
    }

    /// Sets the services whose attachments this waypoint has applied, named in the CONNECT of the connection.
    pub(crate) fn with_applied_services(self, applied: AppliedServices) -> Self {
        Self {
            applied_services: applied,
            ..self
        }
    }

    /// Returns the services whose attachments this waypoint has applied.
    pub(crate) fn applied_services(&self) -> &AppliedServices {
        &self.applied_services
    }

    /// Restricts the pooled connection to one caller, if it is HTTP/2.
    pub(crate) fn for_caller(self, identity: Option<&Identity>, ip: IpAddr) -> Self {
        let caller = match self.version {
            Version::Http1 => None,
            Version::Http2 => Some((identity.cloned(), ip)),
        };
        Self { caller, ..self }
    }

    /// Sets the identity of the connection; `None` for the waypoint's own.
    pub(crate) fn with_identity(self, identity: Option<Identity>) -> Self {
        Self { identity, ..self }
    }

    /// Sets the PROXY protocol header at the start of the connection.
    pub(crate) fn with_preamble(self, preamble: Option<ProxyProtocolHeader>) -> Self {
        Self { preamble, ..self }
    }

    /// Sets the TLS settings of the connection.
    pub(crate) fn with_tls(self, tls: Option<TlsKey>) -> Self {
        Self { tls, ..self }
    }
}
