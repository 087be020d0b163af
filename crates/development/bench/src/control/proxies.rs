//! Simulated node proxies: each a TLS connection with one delta xDS stream, under its own token. They subscribe to
//! everything, acknowledge every push, and store nothing.

use std::{
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    task::{Context as TaskContext, Poll},
    time::{Duration, Instant},
};

use ambit_rt::AbortOnDrop;
use ambit_wire::{
    decode::DELTA_PATH,
    discovery::{DeltaDiscoveryRequest, Node},
    encode::{ADDRESS_TYPE_URL, AUTHORIZATION_TYPE_URL},
};
use anyhow::{Context, Result, bail, ensure};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use bytes::{BufMut, Bytes, BytesMut};
use h2::client::SendRequest;
use prost::Message;
use prost_types::{Struct, Value, value::Kind};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpSocket, TcpStream},
    sync::Semaphore,
};

use super::{delivery_board::DeliveryBoard, frames::PushReader};

/// Maximum number of proxies that receive their initial state concurrently.
const MAX_CONCURRENT_STARTS: usize = 32;
/// HTTP/2 flow-control window of a proxy, in bytes.
const FLOW_CONTROL_WINDOW_BYTES: u32 = 1 << 20;

/// Counters that all simulated proxies share.
#[derive(Debug, Default)]
pub(super) struct FleetTotals {
    /// Number of bytes that the proxies' sockets received.
    pub(super) bytes: AtomicU64,
    /// Number of delta xDS responses that the proxies received.
    pub(super) pushes: AtomicU64,
    /// Number of proxies that have received their initial state.
    pub(super) synced_proxies: AtomicU32,
    /// Number of the proxies' xDS streams that have ended.
    pub(super) ended_streams: AtomicU32,
}

/// All simulated proxies, and the thread on which they run.
#[derive(Debug)]
pub(super) struct ProxyFleet {
    pub(super) totals: Arc<FleetTotals>,
    pub(super) board: Arc<DeliveryBoard>,
    size: u32,
    failed: Arc<parking_lot::Mutex<Option<String>>>,
}

/// Address of the control plane, and the proxies' credentials.
#[derive(Clone, Debug)]
pub(super) struct ControlPlaneTarget {
    pub(super) address: SocketAddr,
    pub(super) tls: Arc<ClientConfig>,
    pub(super) server_name: ServerName<'static>,
}

/// Returns the token of a proxy in Kubernetes' format. Its signature is the proxy's number, by which the simulated API
/// server recognizes it.
pub(super) fn token(proxy: u32) -> String {
    token_with_signature(&format!("proxy {proxy}"))
}

/// Returns a node proxy's token with this signature.
pub(super) fn token_with_signature(signature: &str) -> String {
    let part = |text: &str| BASE64_URL_SAFE_NO_PAD.encode(text);
    let claims = r#"{"iss":"https://kubernetes.default.svc","aud":["istio-ca"],"exp":4000000000,
        "sub":"system:serviceaccount:istio-system:ztunnel"}"#;
    let header = r#"{"alg":"RS256","kid":"simulated"}"#;
    format!("{}.{}.{}", part(header), part(claims), part(signature))
}

/// Returns the number of the proxy to which a token belongs.
pub(super) fn proxy_of(token: &str) -> Option<u32> {
    let (_, signature) = token.rsplit_once('.')?;
    let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).ok()?;
    let signature = std::str::from_utf8(&signature).ok()?;
    signature.strip_prefix("proxy ")?.parse().ok()
}

/// Returns the source address of a proxy; each has its own, as on a cluster.
pub(super) fn address(proxy: u32) -> IpAddr {
    let [_, _, high, low] = proxy.to_be_bytes();
    [127, 1, high, low].into()
}

impl ControlPlaneTarget {
    /// Opens an HTTP/2 connection from a source address; `counted` wraps the stream to count its bytes.
    pub(super) async fn connect<S>(
        &self,
        source: IpAddr,
        counted: impl FnOnce(TcpStream) -> S,
    ) -> Result<(SendRequest<Bytes>, AbortOnDrop<()>)>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let socket = TcpSocket::new_v4()?;
        socket.bind((source, 0).into())?;
        let stream = socket.connect(self.address).await?;
        stream.set_nodelay(true)?;
        let stream = tokio_rustls::TlsConnector::from(Arc::clone(&self.tls))
            .connect(self.server_name.clone(), counted(stream))
            .await
            .context("TLS")?;
        let (send, connection) = h2::client::Builder::new()
            .initial_window_size(FLOW_CONTROL_WINDOW_BYTES)
            .initial_connection_window_size(FLOW_CONTROL_WINDOW_BYTES)
            .handshake::<_, Bytes>(stream)
            .await?;
        let driver = ambit_rt::spawn_abortable("connection", async move {
            // The streams report its end.
            drop(connection.await);
        });
        Ok((send, driver))
    }
}

impl ProxyFleet {
    /// Starts `size` simulated proxies on one thread; the proxies run until the process ends.
    pub(super) fn start(size: u32, target: &ControlPlaneTarget, board: Arc<DeliveryBoard>) -> Self {
        let fleet = Self {
            totals: Arc::default(),
            board,
            size,
            failed: Arc::default(),
        };
        let target = target.clone();
        let (totals, board) = (Arc::clone(&fleet.totals), Arc::clone(&fleet.board));
        let failed = Arc::clone(&fleet.failed);
        std::thread::spawn(move || {
            let Ok(runtime) = ambit_rt::current_thread_runtime() else {
                *failed.lock() = Some("no runtime for the proxies".into());
                return;
            };
            runtime.block_on(async {
                let gate = Arc::new(Semaphore::new(MAX_CONCURRENT_STARTS));
                for number in 0..size {
                    let proxy = Proxy {
                        number,
                        target: target.clone(),
                        totals: Arc::clone(&totals),
                        board: Arc::clone(&board),
                    };
                    let (gate, totals) = (Arc::clone(&gate), Arc::clone(&totals));
                    let failed = Arc::clone(&failed);
                    ambit_rt::spawn("proxy", async move {
                        if let Err(error) = proxy.run(&gate).await {
                            *failed.lock() = Some(format!("proxy {number}: {error:#}"));
                        }
                        totals.ended_streams.fetch_add(1, Ordering::Relaxed);
                    });
                }
                std::future::pending::<()>().await;
            });
        });
        fleet
    }

    /// Waits until every proxy has received its initial state.
    pub(super) fn wait_until_synced(&self, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        loop {
            let synced = self.totals.synced_proxies.load(Ordering::Relaxed);
            if synced >= self.size {
                return Ok(());
            }
            self.check_streams()?;
            ensure!(
                Instant::now() < deadline,
                "{synced} of {} proxies have their first state after {within:?}",
                self.size
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns an error if any proxy's xDS stream has ended.
    pub(super) fn check_streams(&self) -> Result<()> {
        match &*self.failed.lock() {
            Some(error) => bail!("a stream ended: {error}"),
            None => Ok(()),
        }
    }
}

struct Proxy {
    number: u32,
    target: ControlPlaneTarget,
    totals: Arc<FleetTotals>,
    board: Arc<DeliveryBoard>,
}

impl Proxy {
    async fn run(&self, gate: &Semaphore) -> Result<()> {
        let permit = gate.acquire().await?;
        let totals = Arc::clone(&self.totals);
        let counted = |stream| CountedStream { stream, totals };
        let connected = self.target.connect(address(self.number), counted);
        let (mut send, driver) = connected.await?;
        let request = http::Request::post(format!("https://istiod{DELTA_PATH}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("authorization", format!("Bearer {}", token(self.number)))
            .body(())?;
        let (response, mut requests) = send.send_request(request, false)?;
        for type_url in [ADDRESS_TYPE_URL, AUTHORIZATION_TYPE_URL] {
            let subscribe = DeltaDiscoveryRequest {
                node: Some(node(self.number)),
                type_url: type_url.to_owned(),
                ..DeltaDiscoveryRequest::default()
            };
            requests.send_data(frame(&subscribe), false)?;
        }
        let response = response.await?;
        let status = response.headers().get("grpc-status");
        ensure!(status.is_none(), "refused: {:?}", response.headers());
        let mut body = response.into_body();
        let mut reader = PushReader::default();
        let mut permit = Some(permit);
        let mut types = 0;
        while let Some(data) = body.data().await {
            let data = data?;
            body.flow_control().release_capacity(data.len())?;
            let named = |is_there, name: &[u8]| self.board.record_delivery(is_there, name);
            for push in reader.read(&data, named)? {
                self.totals.pushes.fetch_add(1, Ordering::Relaxed);
                let acknowledge = DeltaDiscoveryRequest {
                    type_url: push.type_url,
                    response_nonce: push.nonce,
                    ..DeltaDiscoveryRequest::default()
                };
                requests.send_data(frame(&acknowledge), false)?;
                types += 1;
                if types == 2 {
                    permit.take();
                    self.totals.synced_proxies.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        let trailers = body.trailers().await?;
        drop(driver);
        bail!("the control plane ended the stream: {trailers:?}")
    }
}

/// Encodes a message with gRPC's length prefix.
pub(super) fn frame(message: &impl Message) -> Bytes {
    let message = message.encode_to_vec();
    let mut bytes = BytesMut::with_capacity(message.len() + 5);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    bytes.extend_from_slice(&message);
    bytes.freeze()
}

fn node(number: u32) -> Node {
    let [_, _, high, low] = number.to_be_bytes();
    let text = |text: String| Value {
        kind: Some(Kind::StringValue(text)),
    };
    let fields = [
        ("NAME", format!("ztunnel-{number}")),
        ("NAMESPACE", "istio-system".to_owned()),
        ("NODE_NAME", format!("node-{number}")),
    ];
    Node {
        id: format!(
            "ztunnel~10.255.{high}.{low}~ztunnel-{number}.istio-system~istio-system.svc.cluster.local"
        ),
        metadata: Some(Struct {
            fields: fields
                .into_iter()
                .map(|(key, value)| (key.to_owned(), text(value)))
                .collect(),
        }),
        ..Node::default()
    }
}

/// Connection with a counter of its incoming bytes.
struct CountedStream {
    stream: TcpStream,
    totals: Arc<FleetTotals>,
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        let read = u64::try_from(buffer.filled().len() - before).unwrap_or_default();
        self.totals.bytes.fetch_add(read, Ordering::Relaxed);
        polled
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
