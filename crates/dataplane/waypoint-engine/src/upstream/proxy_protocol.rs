//! PROXY protocol header at the start of a connection to an endpoint.

use std::{io, net::SocketAddr};

use ambit_codec::ProxyHeader;
use ambit_model::{DestinationPolicy, ProxyProtocol};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use super::next_hop::Upstream;

/// PROXY protocol header. A connection that begins with one carries requests of a single client connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProxyProtocolHeader(Box<[u8]>);

impl ProxyProtocolHeader {
    /// Builds the PROXY protocol header with the addresses of the client and of its destination, if the rule requires
    /// one. A next waypoint receives none, since it speaks HBONE.
    pub(crate) fn for_policy(
        policy: &DestinationPolicy,
        upstream: &Upstream,
        client: SocketAddr,
        called: SocketAddr,
    ) -> Option<Self> {
        let version = policy.proxy_protocol.filter(|_| !upstream.is_waypoint())?;
        // A service without an address is called by name: the endpoint's address replaces it.
        let is_known = !called.ip().is_unspecified();
        let header = ProxyHeader {
            source: client,
            destination: if is_known {
                called
            } else {
                upstream.endpoint()
            },
            identity: None,
        };
        let bytes = match version {
            ProxyProtocol::V1 => header.encode_v1().into_bytes(),
            ProxyProtocol::V2 => header.encode(),
        };
        Some(Self(bytes.into()))
    }

    pub(super) async fn send(&self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        to.write_all(&self.0).await?;
        to.flush().await
    }
}
