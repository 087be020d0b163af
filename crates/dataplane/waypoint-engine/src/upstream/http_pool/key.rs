//! Key of pooled connections: requests share a connection only if all parts of their keys are equal.

use std::net::{IpAddr, SocketAddr};

use ambit_model::Identity;

use crate::{
    applied_services::AppliedServices,
    message::Version,
    origination::TlsKey,
    upstream::{next_hop::Upstream, preamble::Preamble},
};

/// Key of pooled connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HttpKey {
    /// Address of the socket or tunnel.
    peer: SocketAddr,
    /// Authority and expected identities of the tunnel; `None` in plaintext.
    tunnel: Option<(String, Vec<Identity>)>,
    pub(super) version: Version,
    /// TLS origination of the connection.
    tls: Option<TlsKey>,
    /// Caller with exclusive use of the HTTP/2 connection.
    caller: Option<(Option<Identity>, IpAddr)>,
    /// Identity of the connection, if not the waypoint's own.
    identity: Option<Identity>,
    /// Services that the tunnel names as applied attachments.
    applied: AppliedServices,
    /// PROXY header of the connection.
    preamble: Option<Preamble>,
}

impl HttpKey {
    pub(crate) fn new(upstream: &Upstream, version: Version) -> Self {
        let (peer, tunnel) = match upstream {
            Upstream::Plain(peer, _) => (*peer, None),
            Upstream::Tunnel(route) => {
                let tunnel = (route.authority.clone(), route.expected.to_vec());
                (route.addr, Some(tunnel))
            }
        };
        Self {
            peer,
            tunnel,
            version,
            tls: None,
            caller: None,
            identity: None,
            applied: AppliedServices::default(),
            preamble: None,
        }
    }

    /// Sets the services whose attachments have been applied, which the tunnel names.
    pub(crate) fn with_applied(self, applied: AppliedServices) -> Self {
        Self { applied, ..self }
    }

    /// Restricts shared connections to one caller.
    pub(crate) fn for_caller(self, identity: Option<&Identity>, ip: IpAddr) -> Self {
        let caller = match self.version {
            Version::Http1 => None,
            Version::Http2 => Some((identity.cloned(), ip)),
        };
        Self { caller, ..self }
    }

    /// Sets an identity other than the waypoint's own.
    pub(crate) fn with_identity(self, identity: Option<Identity>) -> Self {
        Self { identity, ..self }
    }

    /// Adds a preamble to the connections.
    pub(crate) fn with_preamble(self, preamble: Option<Preamble>) -> Self {
        Self { preamble, ..self }
    }

    /// Adds TLS to the connections.
    pub(crate) fn with_tls(self, tls: Option<TlsKey>) -> Self {
        Self { tls, ..self }
    }
}
