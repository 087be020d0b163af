//! Outbound connections of one proxy instance: plain TCP, HBONE tunnels, and tunnels inside tunnels.

mod error;
mod inner;
mod replicas;
mod waypoint_wait;

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ambit_certificates::Certificates;
use ambit_codec::{Forwarded, TraceParent};
use ambit_hbone::{DialError, Pool, PoolKey, Settings, Tunnel, pool::ConnectionReservation, tls};
use ambit_model::{ArcStr, FailureReason, Identity};
use ambit_route::HboneRoute;
use ambit_sys::{
    netns::Netns,
    socket::{self, OutboundSpec, Tuning},
};
use ambit_tls::{PeerRole, WorkloadCert};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use rand::Rng;
use tokio::{net::TcpStream, time::timeout};

use crate::{local::LocalPod, state::SharedState, workers};

pub use error::{ConnectError, InnerError, PlainError};
pub use inner::NestedTunnel;
pub use waypoint_wait::{WaypointWait, WaypointWaits};

/// Timeout for opening one outbound connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Header with the sender's workload metadata.
pub const BAGGAGE_HEADER: HeaderName = HeaderName::from_static("baggage");
const TRACEPARENT_HEADER: HeaderName = HeaderName::from_static("traceparent");

/// Opens outbound connections of one proxy instance.
#[derive(Clone, Debug)]
pub struct Dialer {
    /// Identity whose certificate the dialer presents.
    pub identity: Identity,
    /// Provider of the certificates for mTLS.
    pub certificates: Certificates,
    /// Network namespace of the sockets; `None` is the process's own.
    pub netns: Option<Netns>,
    /// Packet mark that exempts the sockets from redirection.
    pub packet_mark: Option<u32>,
    /// TCP options of the sockets, such as keepalive.
    pub tcp_tuning: Tuning,
    /// HTTP/2 settings of tunnels.
    pub http2_settings: Arc<Settings>,
    /// Node of this process, with which [`Self::is_on_this_node`] compares.
    pub node: ArcStr,
    /// Network of this process, with which [`Self::is_on_this_node`] compares.
    pub network: ArcStr,
    /// Mesh state, in which the dialer looks up workloads and notices their removal.
    pub state: SharedState,
    /// Limit of connections that wait until a pod of their waypoint is ready.
    pub waypoint_waits: WaypointWaits,
}

impl Dialer {
    /// Whether an address is known to belong to a pod on this node; false without a configured node.
    pub fn is_on_this_node(&self, ip: IpAddr) -> bool {
        let table = self.state.table();
        let workload = table.workload_by_ip(&self.network, ip);
        workload.is_some_and(|workload| *workload.node() == self.node) && !self.node.is_empty()
    }

    /// Returns the socket options for an HBONE connection to `destination`. If the destination is on this node, the
    /// connection is accepted by the same worker thread that opens it.
    fn tunnel_socket_spec(&self, destination: IpAddr) -> OutboundSpec {
        let near = self.is_on_this_node(destination);
        OutboundSpec {
            mark: self.packet_mark,
            tuning: Tuning {
                is_local: near,
                ..self.tcp_tuning
            },
            worker: workers::current_worker().filter(|_| near),
            ..OutboundSpec::default()
        }
    }

    /// Returns the socket options of a plain connection to `destination`, which carries the application's own bytes.
    fn plain_socket_spec(&self, destination: IpAddr) -> OutboundSpec {
        OutboundSpec {
            mark: self.packet_mark,
            tuning: Tuning {
                is_local: self.is_on_this_node(destination),
                resets: true,
                ..self.tcp_tuning
            },
            ..OutboundSpec::default()
        }
    }

    /// Opens a plain TCP connection to `addr`.
    ///
    /// # Errors
    ///
    /// When the peer does not respond in time, or refuses the connection.
    pub async fn connect_plain(&self, addr: SocketAddr) -> Result<TcpStream, ConnectError> {
        let failed = |source| ConnectError::Plain { addr, source };
        let socket = socket::outbound(
            self.netns.as_ref(),
            addr,
            &self.plain_socket_spec(addr.ip()),
        )
        .map_err(|error| failed(error.into()))?;
        match timeout(CONNECT_TIMEOUT, socket.connect(addr)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(failed(error.into())),
            Err(_elapsed) => Err(failed(PlainError::Timeout(CONNECT_TIMEOUT))),
        }
    }

    /// Opens a tunnel for `route` in the worker's pool, for a connection of `source_ip`.
    ///
    /// # Errors
    ///
    /// When no connection to the peer can be opened, or it refuses the tunnel.
    pub async fn open_tunnel(
        &self,
        pool: &Pool,
        route: &HboneRoute,
        source_ip: IpAddr,
        headers: HeaderMap,
    ) -> Result<Tunnel, ConnectError> {
        self.open_tunnel_with_reservation(pool, route, source_ip, headers, || Ok(None))
            .await
    }

    /// Opens a tunnel like [`Self::open_tunnel`]; before the pool opens a new connection, `reserve` takes its permit under
    /// a connection limit.
    ///
    /// # Errors
    ///
    /// When there is no connection to the endpoint, or the peer refuses the tunnel.
    pub async fn open_tunnel_with_reservation(
        &self,
        pool: &Pool,
        route: &HboneRoute,
        source_ip: IpAddr,
        headers: HeaderMap,
        reserve: impl Fn() -> Result<Option<ConnectionReservation>, DialError> + Sync,
    ) -> Result<Tunnel, ConnectError> {
        let authority =
            Uri::try_from(route.authority.as_str()).map_err(|source| ConnectError::Authority {
                authority: route.authority.clone(),
                source,
            })?;
        let key = Arc::new(PoolKey {
            source: self.identity.clone(),
            expected_identities: route.expected_identities.to_vec(),
            workload: route.workload.uid().clone(),
            destination: route.addr,
            source_ip,
        });
        let dial = || self.connect_mutual_tls(&key);
        tokio::select! {
            biased;
            opened = pool.open_tunnel_with_reservation(&key, authority, headers, dial, &reserve) => Ok(opened?.0),
            () = self.state.wait_for_departure(&key.workload, key.destination.ip()) => {
                Err(ConnectError::WorkloadRemoved {
                    workload: key.workload.clone(),
                    addr: key.destination,
                })
            }
        }
    }

    /// Opens a TCP connection to the pool key's destination, and performs the mTLS handshake with ALPN `h2`.
    async fn connect_mutual_tls(&self, key: &PoolKey) -> Result<tls::TlsStream, DialError> {
        let addr = key.destination;
        let (certificate, config) = self.tls_credentials(&key.expected_identities).await?;
        let spec = self.tunnel_socket_spec(addr.ip());
        let socket = socket::outbound(self.netns.as_ref(), addr, &spec).map_err(|error| {
            DialError::Prepare {
                text: "cannot make a socket in the pod",
                reason: FailureReason::Connect,
                source: Box::new(error),
            }
        })?;
        let limit = self.http2_settings.connect_timeout;
        let stream = match timeout(limit, socket.connect(addr)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(source)) => return Err(DialError::Connect { addr, source }),
            Err(_elapsed) => return Err(DialError::Timeout { addr, limit }),
        };
        let mut stream = tls::connect(stream, config, self.http2_settings.handshake_timeout)
            .await
            .map_err(|source| DialError::Tls { addr, source })?;
        let chain = tls::peer_certificates(&stream);
        if let Some(withdrawn) =
            certificate.wait_for_trust_withdrawal(PeerRole::Server(&key.expected_identities), chain)
        {
            tls::fail_reads_on_withdrawal(&mut stream, withdrawn);
        }
        Ok(stream)
    }

    /// Returns the instance's certificate, and the TLS client configuration that accepts only the `expected`
    /// identities.
    async fn tls_credentials(
        &self,
        expected: &[Identity],
    ) -> Result<(Arc<WorkloadCert>, Arc<rustls::ClientConfig>), DialError> {
        let got = self.certificates.get(&self.identity).await;
        let certificate = got.map_err(|error| DialError::Prepare {
            text: "no certificate",
            reason: error.reason(),
            source: Box::new(error),
        })?;
        let config = certificate
            .client_config(expected)
            .map_err(|error| DialError::Prepare {
                text: "the certificate cannot be used",
                reason: FailureReason::IdentityError,
                source: Box::new(error),
            })?;
        Ok((certificate, config))
    }
}

/// Builds the CONNECT headers that describe the client of the tunnel: `baggage` and `forwarded`.
pub fn tunnel_headers(local: &LocalPod, forwarded: &Forwarded) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(4);
    if let Some(baggage) = &local.baggage {
        headers.insert(BAGGAGE_HEADER, baggage.clone());
    }
    if let Ok(forwarded) = HeaderValue::from_str(&forwarded.to_string()) {
        headers.insert(http::header::FORWARDED, forwarded);
    }
    let mut rng = rand::rng();
    let trace = TraceParent::from_random(rng.random(), rng.random());
    if let Ok(trace) = HeaderValue::from_str(&trace.to_string()) {
        headers.insert(TRACEPARENT_HEADER, trace);
    }
    headers
}
