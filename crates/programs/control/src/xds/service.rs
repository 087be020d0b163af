//! Sessions over gRPC: one task a stream, woken by requests, by changes of the store, by the drain.

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use ambit_model::{ArcStr, GatewayName};
use ambit_rt::DrainWatcher;
use ambit_wire::discovery::DeltaDiscoveryRequest;
use bytes::Bytes;
use hyper::body::Frame;
use parking_lot::{Mutex, RwLock};
use rand::Rng;
use tokio::sync::{mpsc, watch};
use tonic::{Request, Status, Streaming, body::Body, server::NamedService};

use super::{
    Admission,
    batch::Push,
    node::NodeInfo,
    scope::Client,
    session::{Session, SubscriptionStatus},
    store::Store,
};
use crate::{access::Access, auth::Caller, grpc::ConnectionEnd, metrics::Metrics};

/// Pushes ready for a client that does not read.
const QUEUE: usize = 4;
/// Largest request: versions of a whole mesh at a reconnect.
const MAX_REQUEST: usize = 64 << 20;
/// How long a client waits for the first objects to be read, rather than coming back.
const NOT_READY: Duration = Duration::from_secs(5);
/// Sent to clients at the end. The beginning is what node proxies take for an ordinary end, after which
/// they reconnect without backing off.
const STOPPING: &str = "transport is closing: the control plane stops";
/// Sent to clients whose connection has lasted long enough.
const OLD: &str = "transport is closing: connect anew, so that replicas share the load";
/// Streams at once.
const MAX_STREAMS: usize = 4096;

/// The open streams.
pub type Sessions = Arc<Mutex<BTreeMap<u64, SessionStatus>>>;

/// How one stream stands.
#[derive(Clone, Debug)]
pub struct SessionStatus {
    /// The client, once it said who it is.
    pub node: Option<NodeInfo>,
    /// Whose token it presented.
    pub caller: Caller,
    /// Where it connected from.
    pub peer: String,
    /// Since when.
    pub since: SystemTime,
    /// Its subscriptions.
    pub subscriptions: Vec<SubscriptionStatus>,
}

/// What every stream needs.
#[derive(Clone, Debug)]
pub struct Discovery {
    store: Arc<RwLock<Store>>,
    changes: watch::Receiver<u64>,
    access: Arc<Access>,
    admission: Arc<Admission>,
    metrics: Arc<Metrics>,
    sessions: Sessions,
    next: Arc<AtomicU64>,
    drain: DrainWatcher,
}

impl Discovery {
    /// `changes` carries the store's revision whenever it grew; false until the first objects are in.
    pub fn new(
        store: Arc<RwLock<Store>>,
        changes: watch::Receiver<u64>,
        access: Arc<Access>,
        admission: Admission,
        metrics: Arc<Metrics>,
        drain: DrainWatcher,
    ) -> Self {
        let sessions = Sessions::default();
        Self {
            store,
            changes,
            access,
            admission: Arc::new(admission),
            metrics,
            sessions,
            next: Arc::default(),
            drain,
        }
    }

    /// The open streams.
    pub fn sessions(&self) -> Sessions {
        Arc::clone(&self.sessions)
    }

    async fn open(
        self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<mpsc::Receiver<Result<Push, Status>>, Status> {
        let caller = {
            let (metadata, extensions) = (request.metadata(), request.extensions());
            self.access.caller(metadata, extensions).await?
        };
        if !self.admission.enter().await {
            return Err(Status::unavailable("too many clients come at once"));
        }
        let mut changes = self.changes.clone();
        let ready = changes.wait_for(|revision| *revision > 0);
        if !matches!(tokio::time::timeout(NOT_READY, ready).await, Ok(Ok(_))) {
            return Err(Status::unavailable(
                "the objects of the mesh are not read yet",
            ));
        }
        self.access.check_discovery(&caller, request.extensions())?;
        let peer = request
            .extensions()
            .get::<ambit_grpc_listener::PeerInfo>()
            .and_then(|info| info.address)
            .map(|address| address.to_string())
            .unwrap_or_default();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let status = SessionStatus {
            node: None,
            caller,
            peer,
            since: SystemTime::now(),
            subscriptions: Vec::new(),
        };
        {
            let mut sessions = self.sessions.lock();
            if sessions.len() >= MAX_STREAMS {
                return Err(Status::resource_exhausted("too many streams"));
            }
            sessions.insert(id, status);
            self.metrics.set_streams(sessions.len());
        }
        let (sender, receiver) = mpsc::channel(QUEUE);
        let registered = Registered {
            id,
            sessions: self.sessions(),
            metrics: Arc::clone(&self.metrics),
        };
        let end = request.extensions().get::<ConnectionEnd>().cloned();
        ambit_rt::spawn("xds stream", async move {
            let requests = request.into_inner();
            let old = async move {
                match end {
                    Some(mut end) => end.reached().await,
                    None => std::future::pending().await,
                }
            };
            let work = self.drain.open_work();
            tokio::select! {
                ended = self.serve(&registered, requests, &sender) => {
                    if let Err(status) = ended {
                        tracing::info!(code = ?status.code(), why = status.message(), "xDS stream ended");
                        // Fails only when the client is gone.
                        sender.send(Err(status)).await.ok();
                    }
                }
                () = old => {
                    sender.send(Err(Status::unavailable(OLD))).await.ok();
                }
                () = sender.closed() => {}
            }
            drop(work);
        });
        Ok(receiver)
    }

    async fn serve(
        &self,
        registered: &Registered,
        mut requests: Streaming<DeltaDiscoveryRequest>,
        sender: &mpsc::Sender<Result<Push, Status>>,
    ) -> Result<(), Status> {
        let Some(first) = requests.message().await? else {
            return Ok(());
        };
        let node = registered.identify(&first)?;
        let waypoint = registered.waypoint(&self.access);
        tracing::info!(node = %node.id, waypoint = waypoint.is_some(), "xDS client");
        let client = Client {
            node: match waypoint {
                Some(_) => ArcStr::new(),
                None => node.node_name.clone(),
            },
            waypoint: waypoint.clone(),
        };
        let mut session = Session::new(client, rand::rng().random());
        let mut changes = self.changes.clone();
        let mut drain = self.drain.clone();
        let mut request = Some(first);
        loop {
            let pushes = match request.take() {
                Some(request) => self.take(&mut session, &node, &request)?,
                None => {
                    let store = self.store.read();
                    session
                        .on_change(&store)
                        .map_err(|refused| Status::unavailable(refused.to_string()))?
                }
            };
            if waypoint.is_some() && registered.waypoint(&self.access) != waypoint {
                return Err(Status::permission_denied("the waypoint's Gateway is gone"));
            }
            registered.update(&session);
            for push in pushes {
                self.metrics.pushed(&push);
                if sender.send(Ok(push)).await.is_err() {
                    return Ok(());
                }
            }
            tokio::select! {
                message = requests.message() => match message? {
                    Some(message) => request = Some(message),
                    None => return Ok(()),
                },
                changed = changes.changed() => if changed.is_err() {
                    return Err(Status::unavailable(STOPPING));
                },
                _ = drain.started() => {
                    return Err(Status::unavailable(STOPPING));
                }
            }
        }
    }

    fn take(
        &self,
        session: &mut Session,
        node: &NodeInfo,
        request: &DeltaDiscoveryRequest,
    ) -> Result<Vec<Push>, Status> {
        let store = self.store.read();
        let (outcome, pushes) =
            session
                .on_request(request, &store)
                .map_err(|refused| match refused {
                    super::session::Refused::TooManyNames => {
                        Status::resource_exhausted(refused.to_string())
                    }
                    super::session::Refused::TooFarBehind => {
                        Status::unavailable(refused.to_string())
                    }
                })?;
        drop(store);
        if outcome.stale {
            self.metrics.stale_nonce();
        }
        if outcome.rejected {
            self.metrics.rejected(&request.type_url);
            let error = request
                .error_detail
                .as_ref()
                .map(|error| error.message.as_str())
                .unwrap_or_default();
            let error: String = error.chars().take(500).collect();
            tracing::warn!(node = %node.id, type_url = request.type_url, error, "a client rejected a push");
        }
        Ok(pushes)
    }
}

/// Takes the stream off the list when it ends.
struct Registered {
    id: u64,
    sessions: Sessions,
    metrics: Arc<Metrics>,
}

impl Registered {
    fn identify(&self, first: &DeltaDiscoveryRequest) -> Result<NodeInfo, Status> {
        let mut sessions = self.sessions.lock();
        let session = sessions
            .get_mut(&self.id)
            .ok_or_else(|| Status::internal("stream not listed"))?;
        let node = NodeInfo::read(first.node.as_ref(), &session.caller).map_err(|error| {
            let text = error.to_string();
            tracing::warn!(caller = %session.caller, error = text, "xDS client refused");
            match error {
                super::node::NodeError::Missing | super::node::NodeError::BadId(_) => {
                    Status::invalid_argument(text)
                }
                _ => Status::permission_denied(text),
            }
        })?;
        session.node = Some(node.clone());
        Ok(node)
    }

    /// The waypoint that the client is an instance of.
    fn waypoint(&self, access: &Access) -> Option<GatewayName> {
        let sessions = self.sessions.lock();
        access.waypoint(&sessions.get(&self.id)?.caller)
    }

    fn update(&self, session: &Session) {
        if let Some(status) = self.sessions.lock().get_mut(&self.id) {
            status.subscriptions = session.status();
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut sessions = self.sessions.lock();
        sessions.remove(&self.id);
        self.metrics.set_streams(sessions.len());
    }
}

// === gRPC ===

/// The gRPC service. The generated one would copy every record for every client.
#[derive(Clone, Debug)]
pub struct DiscoveryServer(Discovery);

impl DiscoveryServer {
    /// Serves `discovery`.
    pub fn new(discovery: Discovery) -> Self {
        Self(discovery)
    }
}

impl NamedService for DiscoveryServer {
    const NAME: &'static str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
}

const METHOD: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl tower_service::Service<http::Request<Body>> for DiscoveryServer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != METHOD {
            return Box::pin(async {
                Ok(Status::unimplemented("only delta xDS is served").into_http())
            });
        }
        let discovery = self.0.clone();
        Box::pin(async move {
            let decoder = tonic_prost::ProstDecoder::default();
            let request = Request::from_http(request)
                .map(|body| Streaming::new_request(decoder, body, None, Some(MAX_REQUEST)));
            let pushes = match discovery.open(request).await {
                Ok(pushes) => pushes,
                Err(status) => return Ok(status.into_http()),
            };
            let mut response = http::Response::new(Body::new(Pushes {
                pushes,
                message: VecDeque::new(),
                has_ended: false,
            }));
            let grpc = http::HeaderValue::from_static("application/grpc");
            let headers = response.headers_mut();
            headers.insert(http::header::CONTENT_TYPE, grpc);
            Ok(response)
        })
    }
}

/// Pushes as a response's body. What clients share is passed on without being copied.
struct Pushes {
    pushes: mpsc::Receiver<Result<Push, Status>>,
    /// What is left of the present message.
    message: VecDeque<Bytes>,
    has_ended: bool,
}

impl hyper::body::Body for Pushes {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            if let Some(piece) = self.message.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if self.has_ended {
                return Poll::Ready(None);
            }
            let status = match self.pushes.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(push))) => {
                    self.message.extend(push.message());
                    continue;
                }
                Poll::Ready(Some(Err(status))) => status,
                Poll::Ready(None) => Status::ok(""),
            };
            self.has_ended = true;
            let mut trailers = http::HeaderMap::new();
            if let Err(error) = status.add_header(&mut trailers) {
                // Our own texts are all fit for a header.
                tracing::warn!(%error, "a status cannot be sent");
            }
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
    }
}
