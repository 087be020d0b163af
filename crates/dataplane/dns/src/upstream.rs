//! Forwards a query from inside the pod's network namespace, so that upstream servers see the pod as the client.

use std::{io, net::SocketAddr};

use ambit_sys::{
    datagram,
    socket::{self, OutboundSpec, SocketError},
};
use hickory_proto::op::ResponseCode;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UdpSocket,
    time::{Instant, timeout_at},
};

use crate::{
    relay::ForwardedQuery,
    settings::{DnsLimits, UpstreamSocketOptions},
    transport::Transport,
};

/// Port on which redirection captures DNS queries.
const DNS_PORT: u16 = 53;
/// Maximum number of upstream servers that are tried for a query, as in common resolvers.
const MAX_SERVERS: usize = 3;

/// Reason why a query could not be forwarded.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// No upstream server is configured.
    #[error("the DNS server of the query is not known, and the proxy has none of its own")]
    NoServer,
    /// The pod has too many forwarded queries in flight.
    #[error("too many questions of the pod are waiting for their servers")]
    TooManyQueries,
    /// The upstream server did not respond in time.
    #[error("{0} did not answer in time")]
    NoResponse(SocketAddr),
    /// A socket for the upstream server could not be opened.
    #[error("cannot create a socket to query {server}")]
    Socket {
        /// Address of the server.
        server: SocketAddr,
        /// Cause of the error.
        #[source]
        source: SocketError,
    },
    /// Sending the query or receiving the response failed.
    #[error("cannot query {server}")]
    Exchange {
        /// Address of the server.
        server: SocketAddr,
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
}

/// Forwards a query to the server that the client addressed. If that is unknown, tries the fallback servers in turn.
/// Returns the response with its code.
pub(crate) async fn exchange_with_servers(
    egress: &UpstreamSocketOptions,
    limits: &DnsLimits,
    resolver: Option<SocketAddr>,
    relay: &ForwardedQuery,
    transport: Transport,
) -> Result<(Vec<u8>, ResponseCode), RelayError> {
    let meant = resolver.filter(is_usable_server);
    let servers = meant.as_slice();
    let servers = if servers.is_empty() {
        egress.fallback_servers.as_slice()
    } else {
        servers
    };
    let deadline = Instant::now() + limits.total_timeout;
    let mut left = servers.len().min(MAX_SERVERS);
    let mut result = Err(RelayError::NoServer);
    for server in servers.iter().take(MAX_SERVERS) {
        left -= 1;
        let attempt = Instant::now() + limits.attempt_timeout;
        let until = if left == 0 {
            deadline
        } else {
            attempt.min(deadline)
        };
        let one = async {
            match transport {
                Transport::Udp => exchange_over_udp(egress, *server, relay, attempt, until).await,
                Transport::Tcp => exchange_over_tcp(egress, *server, relay).await,
            }
        };
        result = timeout_at(until, one)
            .await
            .unwrap_or(Err(RelayError::NoResponse(*server)));
        let is_final = |code| !matches!(code, ResponseCode::ServFail | ResponseCode::Refused);
        if result.as_ref().is_ok_and(|(_, code)| is_final(*code)) {
            break;
        }
    }
    result
}

/// Whether this address can be the original destination of a captured query: its port is 53, and it is not loopback,
/// unspecified or multicast. Other addresses could make this server query itself.
fn is_usable_server(resolver: &SocketAddr) -> bool {
    let ip = resolver.ip();
    resolver.port() == DNS_PORT && !ip.is_loopback() && !ip.is_unspecified() && !ip.is_multicast()
}

async fn exchange_over_udp(
    egress: &UpstreamSocketOptions,
    server: SocketAddr,
    relay: &ForwardedQuery,
    retransmit_at: Instant,
    deadline: Instant,
) -> Result<(Vec<u8>, ResponseCode), RelayError> {
    let failed = |source| RelayError::Exchange { server, source };
    let socket = datagram::outbound(egress.netns.as_ref(), server, egress.packet_mark)
        .map_err(|source| RelayError::Socket { server, source })?;
    let socket = UdpSocket::from_std(socket).map_err(failed)?;
    // The kernel picks a random port, and drops what comes from any other address.
    socket.connect(server).await.map_err(failed)?;
    socket.send(relay.message()).await.map_err(failed)?;
    let mut repeat = Some(retransmit_at).filter(|repeat| *repeat < deadline);
    loop {
        let next = repeat.unwrap_or(deadline);
        match timeout_at(next, socket.readable()).await {
            Ok(ready) => ready.map_err(failed)?,
            Err(_) if repeat.take().is_some() => {
                socket.send(relay.message()).await.map_err(failed)?;
                continue;
            }
            Err(_) => return Err(RelayError::NoResponse(server)),
        }
        match receive(&socket) {
            Ok(bytes) => {
                if let Some(answer) = relay.accept_response(bytes) {
                    return Ok(answer);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Receives a datagram. The buffer of the maximum datagram size exists only during this call, not while the query
/// waits.
fn receive(socket: &UdpSocket) -> io::Result<Vec<u8>> {
    let mut buffer = [0; 65_535];
    let len = socket.try_recv(&mut buffer)?;
    Ok(buffer.get(..len).unwrap_or_default().to_vec())
}

async fn exchange_over_tcp(
    egress: &UpstreamSocketOptions,
    server: SocketAddr,
    relay: &ForwardedQuery,
) -> Result<(Vec<u8>, ResponseCode), RelayError> {
    let failed = |source| RelayError::Exchange { server, source };
    let spec = OutboundSpec {
        mark: egress.packet_mark,
        ..OutboundSpec::default()
    };
    let socket = socket::outbound(egress.netns.as_ref(), server, &spec)
        .map_err(|source| RelayError::Socket { server, source })?;
    let mut stream = socket.connect(server).await.map_err(failed)?;
    let message = relay.message();
    let len = u16::try_from(message.len()).unwrap_or(u16::MAX);
    let framed = [&len.to_be_bytes()[..], message].concat();
    stream.write_all(&framed).await.map_err(failed)?;
    loop {
        let len = stream.read_u16().await.map_err(failed)?;
        let mut answer = vec![0; len.into()];
        stream.read_exact(&mut answer).await.map_err(failed)?;
        if let Some(answer) = relay.accept_response(answer) {
            return Ok(answer);
        }
    }
}

#[cfg(test)]
mod tests;
