//! A tunnel inside a tunnel: to another network, through its gateway.
//!
//! The outer tunnel ends at the gateway, which passes the inner one's bytes on; only the far end
//! reads the inner one. Inner connections are not shared.

use std::net::SocketAddr;

use ambit_codec::Baggage;
use ambit_hbone::{DialError, Meter, RelayError, Tunnel, TunnelError, client, relay_tunnel, tls};
use ambit_model::{Identity, Reason};
use ambit_route::InnerTunnel;
use ambit_tls::PeerRole;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use tokio::net::TcpStream;

use crate::{outbound::credentials, pod::Pod};

const FORWARDED_NETWORK: HeaderName = HeaderName::from_static("x-forwarded-network");

/// The inner tunnel could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InnerError {
    #[error("the inner tunnel's authority cannot be sent")]
    Authority(#[from] http::uri::InvalidUri),
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error(transparent)]
    Tunnel(#[from] TunnelError),
}

impl InnerError {
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Authority(_) => Reason::Connect,
            Self::Dial(error) => error.reason(),
            Self::Tunnel(error) => error.reason(),
        }
    }
}

/// An established inner tunnel. Its connection ends with it, in order: the far end is told how.
#[derive(Debug)]
pub(crate) struct Inner {
    tunnel: Tunnel,
}

impl Inner {
    /// Opens one within `outer`. Also says who the far end proved to be.
    pub(crate) async fn open(
        pod: &Pod,
        outer: Tunnel,
        inner: &InnerTunnel,
        addr: SocketAddr,
        mut headers: HeaderMap,
    ) -> Result<(Self, Option<Identity>), InnerError> {
        let authority = Uri::try_from(inner.authority.as_str())?;
        let (certificate, config) = credentials(pod, &pod.identity, &inner.expected).await?;
        if let Ok(network) = HeaderValue::from_str(&pod.proxy.config.network) {
            headers.insert(FORWARDED_NETWORK, network);
        }
        let settings = &pod.proxy.config.http2;
        let mut stream = tls::connect(outer.into_io(), config, settings.handshake_timeout)
            .await
            .map_err(|source| DialError::Tls { addr, source })?;
        let chain = tls::peer_certificates(&stream);
        let far = ambit_tls::peer_identity(chain);
        if let Some(revocation) = certificate.revocation(PeerRole::Server, chain) {
            tls::end_when_revoked(&mut stream, revocation);
        }
        let (connection, driver) = client::handshake(stream, settings)
            .await
            .map_err(|source| DialError::Http2 { addr, source })?;
        drop(ambit_rt::spawn("inner hbone connection", driver.run(|| {})));
        let (tunnel, answer) = connection.tunnel(authority, headers).await?;
        let described = answer
            .headers
            .get("baggage")
            .and_then(|baggage| Baggage::parse(baggage.as_bytes()).ok());
        tracing::debug!(?described, "the far end of the inner tunnel");
        Ok((Self { tunnel }, far))
    }

    /// Copies until both directions have ended.
    pub(crate) async fn relay<M: Meter>(
        &mut self,
        app: &mut TcpStream,
        meter: M,
    ) -> Result<(), RelayError> {
        relay_tunnel(app, &mut self.tunnel, meter).await
    }

    /// See [`Tunnel::reset`].
    pub(crate) fn reset(&mut self) {
        self.tunnel.reset();
    }
}
