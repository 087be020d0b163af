//! Server side of HBONE tunnels: mTLS, then HTTP/2 until both sides have closed or the proxy instance ends.

use std::{error::Error, net::SocketAddr, pin::pin, time::Duration};

use ambit_hbone::{IncomingRequest, Permit, Settings, server, tls};
use ambit_rt::DrainWatcher;
use ambit_tls::PeerRole;
use tokio::{net::TcpStream, time::timeout};

use crate::{Dialer, report::format_error_chain};

/// Time for which a connection stays open after its end, so that the RST_STREAM frames of its tunnels are sent.
const RESET_LINGER: Duration = Duration::from_millis(500);

/// Performs the TLS handshake with a client, under the instance's own identity. Returns `None` if the instance ends
/// meanwhile.
///
/// # Errors
///
/// When the instance has no certificate, or the client's certificate is missing or not accepted.
pub async fn accept_tls(
    dialer: &Dialer,
    stream: TcpStream,
    drain: &mut DrainWatcher,
) -> Option<Result<tls::TlsStream, Box<dyn Error + Send + Sync>>> {
    tokio::select! {
        stream = Box::pin(handshake(dialer, stream)) => Some(stream),
        () = drain.wait_until_deadline() => None,
    }
}

async fn handshake(
    dialer: &Dialer,
    stream: TcpStream,
) -> Result<tls::TlsStream, Box<dyn Error + Send + Sync>> {
    let certificate = dialer.certificates.get(&dialer.identity).await?;
    let config = certificate.server_config()?;
    let limit = dialer.http2_settings.handshake_timeout;
    let mut stream = tls::accept(stream, config, limit).await?;
    let chain = tls::peer_certificates(&stream);
    if let Some(withdrawn) = certificate.wait_for_trust_withdrawal(PeerRole::Client, chain) {
        tls::fail_reads_on_withdrawal(&mut stream, withdrawn);
    }
    Ok(stream)
}

/// Passes each tunnel that `peer` opens to `handler`, which must not block. When the drain begins, sends GOAWAY, so
/// that the peer opens no more tunnels. The connection's receive windows may grow as its permit allows.
pub async fn serve(
    stream: tls::TlsStream,
    settings: &Settings,
    permit: Option<Box<dyn Permit>>,
    mut drain: DrainWatcher,
    peer: SocketAddr,
    handler: impl FnMut(IncomingRequest),
) {
    let mut draining = drain.clone();
    let graceful = async move {
        draining.wait_until_started().await;
    };
    let mut serving = pin!(server::serve_with_permit(
        stream, settings, permit, graceful, handler
    ));
    let served = tokio::select! {
        served = &mut serving => served,
        // The tunnels are cut too: this sends the resets to their peers.
        () = drain.wait_until_deadline() => timeout(RESET_LINGER, serving).await.unwrap_or(Ok(())),
    };
    if let Err(error) = served {
        tracing::debug!(%peer, error = format_error_chain(&error), "an HBONE connection ended");
    }
}
