//! Clients of another network: their tunnels reach a waypoint inside the tunnels of an east-west
//! gateway.
//!
//! The client opens a tunnel to the gateway and a nested one to the waypoint, with separate mutual
//! TLS. The gateway terminates the outer tunnel and passes its bytes on: it reads only the
//! authority of the outer CONNECT, and the waypoint sees the gateway's address and the client's
//! identity.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
};

use ambit_hbone::{Settings, client, server, tls};
use ambit_lab::{Client, LabNetns};
use ambit_model::Identity;
use ambit_tls::WorkloadCert;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use tokio::{
    io::{AsyncRead, AsyncWrite, copy_bidirectional},
    net::TcpStream,
    runtime::Builder,
    task::JoinHandle,
};

use crate::{HbonePeer, TIMEOUT};

/// Header that names the client's network. Only the inner CONNECT has it.
const FORWARDED_NETWORK_HEADER: HeaderName = HeaderName::from_static("x-forwarded-network");

/// Client in another network, its east-west gateway, and the waypoint to which the client connects through the gateway.
#[derive(Clone)]
struct GatewayPath {
    lab: Client,
    client: Arc<WorkloadCert>,
    gateway: Arc<WorkloadCert>,
    /// Network namespace of the gateway's pod.
    gateway_netns: LabNetns,
    waypoint: (Identity, SocketAddr),
    authority: Uri,
}

/// Returns a local address whose connections are forwarded in tunnels of `client`, through the pod
/// `gateway`, to the target `authority` at a waypoint.
///
/// # Errors
///
/// When no local address can be bound.
pub fn through_gateway(
    (client, gateway): (&HbonePeer<'_>, &HbonePeer<'_>),
    (identity, address): (&str, SocketAddr),
    authority: &str,
) -> io::Result<SocketAddr> {
    let path = GatewayPath {
        lab: client.mesh().client().clone(),
        client: client.cert().clone(),
        gateway: gateway.cert().clone(),
        gateway_netns: gateway.netns().clone(),
        waypoint: (identity.parse().expect("a SPIFFE id"), address),
        authority: authority.parse().expect("an authority"),
    };
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(path.clone().serve(stream));
            }
        });
    });
    Ok(near)
}

impl GatewayPath {
    /// Forwards a connection through both tunnels, until either side closes it or a tunnel is rejected.
    async fn serve(self, mut stream: TcpStream) -> io::Result<()> {
        let (near, far) = tokio::io::duplex(64 << 10);
        let gateway = tokio::spawn(self.clone().serve_as_gateway(far));
        let of_gateway = self.gateway.identity().clone();
        let (outer, outer_driver) = self.open_tunnel(near, of_gateway, HeaderMap::new()).await?;
        let mut headers = HeaderMap::new();
        headers.insert(FORWARDED_NETWORK_HEADER, HeaderValue::from_static("far"));
        let (mut inner, inner_driver) = self
            .open_tunnel(outer, self.waypoint.0.clone(), headers)
            .await?;
        let ended = copy_bidirectional(&mut stream, &mut inner).await;
        for task in [gateway, outer_driver, inner_driver] {
            task.abort();
        }
        ended.map(|_| ())
    }

    /// Opens one tunnel with the client's certificate.
    async fn open_tunnel(
        &self,
        io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        server: Identity,
        headers: HeaderMap,
    ) -> io::Result<(
        impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        JoinHandle<()>,
    )> {
        let config = self.client.client_config(&[server]);
        let stream = tls::connect(io, config.map_err(io::Error::other)?, TIMEOUT).await;
        let stream = stream.map_err(io::Error::other)?;
        let handshake = client::handshake(stream, &Settings::default()).await;
        let (client, driver) = handshake.map_err(io::Error::other)?;
        let driver = tokio::spawn(driver.run(|| ()));
        let tunnel = client.open_tunnel(self.authority.clone(), headers).await;
        let (tunnel, _) = tunnel.map_err(io::Error::other)?;
        Ok((tunnel.into_io(), driver))
    }

    /// Serves as the gateway: terminates the outer tunnels, and connects their streams to the waypoint.
    async fn serve_as_gateway(self, io: tokio::io::DuplexStream) {
        let config = self.gateway.server_config().expect("a TLS configuration");
        let stream = tls::accept(io, config, TIMEOUT).await.expect("TLS");
        let (settings, never) = (Settings::default(), std::future::pending());
        let serving = server::serve(stream, &settings, never, |incoming| {
            let target = incoming.target().expect("an authority").to_string();
            assert_eq!(target, self.authority.to_string());
            let outer = incoming.accept(HeaderMap::new());
            let mut outer = outer.expect("a tunnel").into_io();
            let waypoint = self.lab.dial(self.gateway_netns.clone(), self.waypoint.1);
            let waypoint = waypoint.expect("a connection from the gateway's pod");
            waypoint.set_nonblocking(true).expect("a socket");
            let mut waypoint = TcpStream::from_std(waypoint).expect("a socket");
            tokio::spawn(async move { copy_bidirectional(&mut outer, &mut waypoint).await });
        });
        let _ended = serving.await;
    }
}
