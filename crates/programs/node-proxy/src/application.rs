//! Opens connections to the pod's own application.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ambit_codec::ProxyHeader;
use ambit_proxy::dial::CONNECT_TIMEOUT;
use ambit_sys::{
    redirection::bpf::APPLICATION_CALL_MARK,
    socket::{self, OutboundSpec, SocketError, Tuning},
};
use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};

use crate::pod::Pod;

/// Error of connecting to the pod's application.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppError {
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("connection failed: {addr}")]
    Connect {
        addr: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("connection failed: {addr} did not answer within {limit:?}")]
    Timeout { addr: SocketAddr, limit: Duration },
    #[error("cannot send the PROXY header to {addr}")]
    ProxyHeader {
        addr: SocketAddr,
        #[source]
        source: io::Error,
    },
}

/// Connects to the pod's application, with the client's address as the source if it is given and the socket can be
/// transparent.
pub(crate) async fn connect(
    pod: &Pod,
    addr: SocketAddr,
    client: Option<IpAddr>,
) -> Result<TcpStream, AppError> {
    let source = client.filter(|client| pod.preserves_client_address && *client != addr.ip());
    let by_bpf = pod.bpf.is_prepared();
    let (mark, own) = if by_bpf {
        // Bound to loopback, the socket would otherwise get its address.
        (Some(APPLICATION_CALL_MARK), Some(addr.ip()))
    } else {
        (pod.config.packet_mark, None)
    };
    let spec = OutboundSpec {
        mark,
        source: source.or(own),
        loopback: by_bpf,
        // The kernel reports the death of a local application at once: no keepalive probes.
        tuning: Tuning {
            is_local: true,
            resets: true,
            ..Tuning::default()
        },
        ..OutboundSpec::default()
    };
    let socket = socket::outbound(Some(&pod.netns), addr, &spec)?;
    match timeout(CONNECT_TIMEOUT, socket.connect(addr)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(source)) => Err(AppError::Connect { addr, source }),
        Err(_elapsed) => Err(AppError::Timeout {
            addr,
            limit: CONNECT_TIMEOUT,
        }),
    }
}

/// Sends a PROXY protocol header to the application, ahead of the client's bytes.
pub(crate) async fn send_proxy_header(
    app: &mut TcpStream,
    addr: SocketAddr,
    header: &ProxyHeader,
) -> Result<(), AppError> {
    match timeout(CONNECT_TIMEOUT, app.write_all(&header.encode())).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(source)) => Err(AppError::ProxyHeader { addr, source }),
        Err(_elapsed) => Err(AppError::Timeout {
            addr,
            limit: CONNECT_TIMEOUT,
        }),
    }
}
