//! Nested tunnels: an HBONE tunnel inside another one, to an endpoint in another network through that network's
//! gateway.
//!
//! The outer tunnel ends at the gateway, which forwards the bytes of the inner one to the endpoint. Inner connections
//! are not pooled.

use std::net::SocketAddr;

use ambit_codec::Baggage;
use ambit_hbone::{DialError, Tunnel, client, tls};
use ambit_model::Identity;
use ambit_route::InnerTunnel;
use ambit_tls::PeerRole;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use super::{Dialer, error::InnerError};

const FORWARDED_NETWORK: HeaderName = HeaderName::from_static("x-forwarded-network");

/// Established inner tunnel. Dropping it closes its connection in order, so that the peer receives the end of the
/// stream.
#[derive(Debug)]
pub struct NestedTunnel {
    tunnel: Tunnel,
}

impl NestedTunnel {
    /// Returns the inner tunnel.
    pub fn tunnel(&mut self) -> &mut Tunnel {
        &mut self.tunnel
    }
}

impl Dialer {
    /// Opens a tunnel within `outer`, whose peer is at `addr`. Also returns the verified identity of the inner
    /// tunnel's server.
    ///
    /// # Errors
    ///
    /// When the inner TLS handshake fails, or the server refuses the tunnel.
    pub async fn open_nested_tunnel(
        &self,
        outer: Tunnel,
        inner: &InnerTunnel,
        addr: SocketAddr,
        mut headers: HeaderMap,
    ) -> Result<(NestedTunnel, Option<Identity>), InnerError> {
        let authority = Uri::try_from(inner.authority.as_str())?;
        let (certificate, config) = self.tls_credentials(&inner.expected_identities).await?;
        if let Ok(network) = HeaderValue::from_str(&self.network) {
            headers.insert(FORWARDED_NETWORK, network);
        }
        let settings = &self.http2_settings;
        let mut stream = tls::connect(outer.into_io(), config, settings.handshake_timeout)
            .await
            .map_err(|source| DialError::Tls { addr, source })?;
        let chain = tls::peer_certificates(&stream);
        let far = ambit_tls::peer_identity(chain);
        if let Some(withdrawn) = certificate
            .wait_for_trust_withdrawal(PeerRole::Server(&inner.expected_identities), chain)
        {
            tls::fail_reads_on_withdrawal(&mut stream, withdrawn);
        }
        let (connection, driver) = client::handshake(stream, settings)
            .await
            .map_err(|source| DialError::Http2 { addr, source })?;
        drop(ambit_rt::spawn("inner hbone connection", driver.run(|| {})));
        let (tunnel, answer) = connection.open_tunnel(authority, headers).await?;
        let described = answer
            .headers
            .get("baggage")
            .and_then(|baggage| Baggage::parse(baggage.as_bytes()).ok());
        tracing::debug!(?described, "the far end of the inner tunnel");
        Ok((NestedTunnel { tunnel }, far))
    }
}
