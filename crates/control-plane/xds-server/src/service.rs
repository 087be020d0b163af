//! Runs sessions over gRPC: one task per stream, woken by requests, by changes of the store, and by the drain.

use std::{
    collections::VecDeque,
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

use ambit_caller_auth::{
    CallerAccess,
    caller_pod::{Pods, authorize_own_identity},
};
use ambit_codec::grpc_frame;
use ambit_derive::PodDirectory;
use ambit_grpc_listener::ConnectionCloseSignal;
use ambit_model::{ArcStr, GatewayName};
use ambit_rt::DrainWatcher;
use ambit_wire::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryResponse};
use bytes::Bytes;
use hyper::body::Frame;
use parking_lot::RwLock;
use prost::Message;
use rand::Rng;
use tokio::sync::{mpsc, watch};
use tonic::{Request, Status, Streaming, body::Body, server::NamedService};

use crate::{
    admission::StreamAdmission,
    batch::Push,
    debug::{self, DebugService},
    metrics::XdsMetrics,
    node::NodeInfo,
    scope::Client,
    session::Session,
    sessions::{SessionStatus, SessionTable},
    store::Store,
    unknown_types::UnknownTypes,
};

/// Capacity of the queue of pushes to one client.
const QUEUE_CAPACITY: usize = 4;
/// Maximum size of a request in bytes: a reconnecting client sends the versions of a whole mesh.
const MAX_REQUEST_BYTES: usize = 64 << 20;
/// Time for which a new stream waits for the initial objects before it is rejected.
const READY_TIMEOUT: Duration = Duration::from_secs(5);
/// Status message at shutdown. Its prefix makes node proxies treat it as an ordinary end, and reconnect without
/// backoff.
const STOPPING_MESSAGE: &str = "transport is closing: the control plane stops";
/// Status message for clients whose connection has reached its maximum age.
const MAX_AGE_MESSAGE: &str = "transport is closing: connect anew, so that replicas share the load";
/// Maximum concurrent delta xDS streams.
const MAX_STREAMS: usize = 4096;

/// State that all delta xDS streams share.
#[derive(Clone, Debug)]
pub struct DeltaDiscovery {
    store: Arc<RwLock<Store>>,
    store_revision: watch::Receiver<u64>,
    access: Arc<CallerAccess>,
    pods: Pods,
    admission: Arc<StreamAdmission>,
    metrics: XdsMetrics,
    sessions: SessionTable,
    next_session_id: Arc<AtomicU64>,
    drain: DrainWatcher,
}

impl DeltaDiscovery {
    /// Creates the service. `changes` has the store's revision after each change, and no value
    /// before the initial objects are known.
    pub fn new(
        store: Arc<RwLock<Store>>,
        changes: watch::Receiver<u64>,
        access: Arc<CallerAccess>,
        pods: Pods,
        admission: StreamAdmission,
        metrics: XdsMetrics,
        drain: DrainWatcher,
    ) -> Self {
        let sessions = SessionTable::default();
        Self {
            store,
            store_revision: changes,
            access,
            pods,
            admission: Arc::new(admission),
            metrics,
            sessions,
            next_session_id: Arc::default(),
            drain,
        }
    }

    /// Returns the shared table of open streams.
    pub fn sessions(&self) -> SessionTable {
        Arc::clone(&self.sessions)
    }

    async fn open(
        self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<mpsc::Receiver<Result<Response, Status>>, Status> {
        let caller = {
            let (metadata, extensions) = (request.metadata(), request.extensions());
            self.access
                .authenticate_caller(metadata, extensions)
                .await?
        };
        if !self.admission.acquire().await {
            return Err(Status::unavailable("too many clients come at once"));
        }
        let mut changes = self.store_revision.clone();
        let ready = changes.wait_for(|revision| *revision > 0);
        if !matches!(tokio::time::timeout(READY_TIMEOUT, ready).await, Ok(Ok(_))) {
            return Err(Status::unavailable(
                "the objects of the mesh are not read yet",
            ));
        }
        let check = |pods: &PodDirectory| authorize_own_identity(&*self.access, pods, &caller);
        let denied = self.pods.retry_while_transient(check).await.err();
        let denied = denied.map(|denied| denied.to_string());
        let extensions = request.extensions();
        self.access
            .authorize_discovery(&caller, denied, extensions)?;
        let peer = request
            .extensions()
            .get::<ambit_grpc_listener::PeerInfo>()
            .and_then(|info| info.address)
            .map(|address| address.to_string())
            .unwrap_or_default();
        let id = self.next_session_id.fetch_add(1, Ordering::Relaxed);
        let status = SessionStatus {
            node: None,
            caller,
            peer_address: peer,
            opened_at: SystemTime::now(),
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
        let (sender, receiver) = mpsc::channel(QUEUE_CAPACITY);
        let registration = StreamRegistration {
            id,
            sessions: self.sessions(),
            metrics: self.metrics.clone(),
        };
        let end = request.extensions().get::<ConnectionCloseSignal>().cloned();
        ambit_rt::spawn("xds stream", async move {
            let requests = request.into_inner();
            let old = async move {
                match end {
                    Some(mut end) => end.wait().await,
                    None => std::future::pending().await,
                }
            };
            let work = self.drain.open_work();
            tokio::select! {
                ended = self.serve(&registration, requests, &sender) => {
                    if let Err(status) = ended {
                        tracing::info!(code = ?status.code(), why = status.message(), "xDS stream ended");
                        // Sending fails only if the client has disconnected.
                        sender.send(Err(status)).await.ok();
                    }
                }
                () = old => {
                    sender.send(Err(Status::unavailable(MAX_AGE_MESSAGE))).await.ok();
                }
                () = sender.closed() => {}
            }
            drop(work);
        });
        Ok(receiver)
    }

    async fn serve(
        &self,
        registration: &StreamRegistration,
        mut requests: Streaming<DeltaDiscoveryRequest>,
        sender: &mpsc::Sender<Result<Response, Status>>,
    ) -> Result<(), Status> {
        let Some(first) = requests.message().await? else {
            return Ok(());
        };
        let node = registration.identify(&first)?;
        let waypoint = registration.waypoint(&self.access);
        tracing::info!(node = %node.id, waypoint = waypoint.is_some(), "xDS client");
        let client = Client {
            node: match waypoint {
                Some(_) => ArcStr::new(),
                None => node.node_name.clone(),
            },
            waypoint: waypoint.clone(),
        };
        let mut session = Session::new(client, rand::rng().random());
        let mut unknown_types = UnknownTypes::default();
        let mut changes = self.store_revision.clone();
        let mut drain = self.drain.clone();
        let mut request = Some(first);
        loop {
            let none = request
                .as_ref()
                .and_then(|request| unknown_types.respond_without_records(request));
            let none = none.map(Response::WithoutRecords);
            let pushes = match request.take() {
                Some(request) => self.handle_request(&mut session, &node, &request)?,
                None => {
                    let store = self.store.read();
                    session
                        .on_change(&store)
                        .map_err(|refused| Status::unavailable(refused.to_string()))?
                }
            };
            if waypoint.is_some() {
                if registration.waypoint(&self.access) != waypoint {
                    return Err(Status::permission_denied("the waypoint's Gateway is gone"));
                }
                if !registration.is_alive(&self.access, &self.pods) {
                    return Err(Status::permission_denied("the waypoint's pod is gone"));
                }
            }
            registration.update(&session);
            for push in &pushes {
                let batch = &push.batch;
                self.metrics
                    .record_push(batch.view.resource_type(), batch.resources.len());
            }
            let pushes = pushes.into_iter().map(Response::Push);
            for response in none.into_iter().chain(pushes) {
                if sender.send(Ok(response)).await.is_err() {
                    return Ok(());
                }
            }
            tokio::select! {
                message = requests.message() => match message? {
                    Some(message) => request = Some(message),
                    None => return Ok(()),
                },
                changed = changes.changed() => if changed.is_err() {
                    return Err(Status::unavailable(STOPPING_MESSAGE));
                },
                _ = drain.wait_until_started() => {
                    return Err(Status::unavailable(STOPPING_MESSAGE));
                }
            }
        }
    }

    fn handle_request(
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
                    crate::session::SessionError::TooManyNames => {
                        Status::resource_exhausted(refused.to_string())
                    }
                    crate::session::SessionError::TooFarBehind => {
                        Status::unavailable(refused.to_string())
                    }
                })?;
        drop(store);
        if outcome.is_stale {
            self.metrics.record_stale_nonce();
        }
        if outcome.is_rejection {
            self.metrics.record_rejection(&request.type_url);
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

/// Guard that removes a stream from the table of open streams when it ends.
struct StreamRegistration {
    id: u64,
    sessions: SessionTable,
    metrics: XdsMetrics,
}

impl StreamRegistration {
    fn identify(&self, first: &DeltaDiscoveryRequest) -> Result<NodeInfo, Status> {
        let mut sessions = self.sessions.lock();
        let session = sessions
            .get_mut(&self.id)
            .ok_or_else(|| Status::internal("stream not listed"))?;
        let node = NodeInfo::parse(first.node.as_ref(), &session.caller).map_err(|error| {
            let text = error.to_string();
            tracing::warn!(caller = %session.caller, error = text, "xDS client refused");
            match error {
                crate::node::NodeError::MissingNode | crate::node::NodeError::InvalidNodeId(_) => {
                    Status::invalid_argument(text)
                }
                _ => Status::permission_denied(text),
            }
        })?;
        session.node = Some(node.clone());
        Ok(node)
    }

    /// Returns the waypoint that the stream's client is an instance of.
    fn waypoint(&self, access: &CallerAccess) -> Option<GatewayName> {
        let sessions = self.sessions.lock();
        access.waypoint_of_caller(&sessions.get(&self.id)?.caller)
    }

    /// Returns whether the client's pod is still alive and may act as its service account.
    fn is_alive(&self, access: &CallerAccess, pods: &Pods) -> bool {
        let sessions = self.sessions.lock();
        let session = sessions.get(&self.id);
        session.is_some_and(|one| {
            authorize_own_identity(access, &pods.directory.read(), &one.caller).is_ok()
        })
    }

    fn update(&self, session: &Session) {
        if let Some(status) = self.sessions.lock().get_mut(&self.id) {
            status.subscriptions = session.status();
        }
    }
}

impl Drop for StreamRegistration {
    fn drop(&mut self) {
        let mut sessions = self.sessions.lock();
        sessions.remove(&self.id);
        self.metrics.set_streams(sessions.len());
    }
}

// === gRPC ===

/// gRPC service of both xDS variants, delta and state-of-the-world. The service is written by hand because the
/// generated one would copy every record for every client.
#[derive(Clone, Debug)]
pub struct DiscoveryServer {
    discovery: DeltaDiscovery,
    debug: DebugService,
}

impl DiscoveryServer {
    /// Creates the service: `discovery` serves proxies, `debug` Istio's tools.
    pub fn new(discovery: DeltaDiscovery, debug: DebugService) -> Self {
        Self { discovery, debug }
    }
}

impl NamedService for DiscoveryServer {
    const NAME: &'static str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
}

const DELTA_METHOD_PATH: &str =
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
        match request.uri().path() {
            DELTA_METHOD_PATH => {
                let discovery = self.discovery.clone();
                Box::pin(async move {
                    let decoder = tonic_prost::ProstDecoder::default();
                    let request = Request::from_http(request).map(|body| {
                        Streaming::new_request(decoder, body, None, Some(MAX_REQUEST_BYTES))
                    });
                    let pushes = discovery.open(request).await;
                    Ok(pushes.map_or_else(Status::into_http, stream_response))
                })
            }
            debug::STREAM_METHOD => {
                let debug = self.debug.clone();
                Box::pin(async move {
                    let decoder = tonic_prost::ProstDecoder::default();
                    let limit = Some(debug::MAX_REQUEST_BYTES);
                    let request = Request::from_http(request)
                        .map(|body| Streaming::new_request(decoder, body, None, limit));
                    let responses = debug.open(request).await;
                    Ok(responses.map_or_else(Status::into_http, stream_response))
                })
            }
            path => {
                let path: String = path.chars().take(200).collect();
                Box::pin(async move {
                    Ok(Status::unimplemented(format!("{path} is not served")).into_http())
                })
            }
        }
    }
}

/// Returns a response whose body is a stream of messages.
fn stream_response<M: StreamMessage>(
    messages: mpsc::Receiver<Result<M, Status>>,
) -> http::Response<Body> {
    let mut response = http::Response::new(Body::new(MessageStream {
        messages,
        pieces: VecDeque::new(),
        has_ended: false,
    }));
    let grpc = http::HeaderValue::from_static("application/grpc");
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, grpc);
    response
}

/// Message that can be encoded with its gRPC length prefix.
trait StreamMessage: Send + 'static {
    fn into_pieces(self) -> Vec<Bytes>;
}

/// Response of delta xDS.
#[derive(Debug)]
pub(crate) enum Response {
    /// Push of records of a type.
    Push(Push),
    /// Response without records, to a type that this version does not know.
    WithoutRecords(DeltaDiscoveryResponse),
}

impl StreamMessage for Response {
    fn into_pieces(self) -> Vec<Bytes> {
        match self {
            Self::Push(push) => push.message().collect(),
            Self::WithoutRecords(none) => frame_message(&none),
        }
    }
}

impl StreamMessage for DiscoveryResponse {
    fn into_pieces(self) -> Vec<Bytes> {
        frame_message(&self)
    }
}

/// Encodes a short message with its gRPC length prefix.
fn frame_message(message: &impl Message) -> Vec<Bytes> {
    let framed = grpc_frame::encode_grpc_frame(&message.encode_to_vec());
    framed.into_iter().map(Bytes::from).collect()
}

/// Response body of a stream of messages. Bytes that clients share are passed on without a copy.
struct MessageStream<M> {
    messages: mpsc::Receiver<Result<M, Status>>,
    /// Remaining encoded pieces of the current message.
    pieces: VecDeque<Bytes>,
    has_ended: bool,
}

impl<M: StreamMessage> hyper::body::Body for MessageStream<M> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if self.has_ended {
                return Poll::Ready(None);
            }
            let status = match self.messages.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(message))) => {
                    self.pieces.extend(message.into_pieces());
                    continue;
                }
                Poll::Ready(Some(Err(status))) => status,
                Poll::Ready(None) => Status::ok(""),
            };
            self.has_ended = true;
            let mut trailers = http::HeaderMap::new();
            if let Err(error) = status.add_header(&mut trailers) {
                // Our own messages are valid header values.
                tracing::warn!(%error, "a status cannot be sent");
            }
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
    }
}
