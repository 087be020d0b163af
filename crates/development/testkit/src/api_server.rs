//! Kubernetes API server in memory: objects of any kind, listed in pages, watched, created,
//! replaced, patched and deleted, over HTTP on loopback. Tests control its outages.
//!
//! It has no schemas and no access control. Kinds are identified by their plural in the path; label
//! and field selectors support equality and existence. It is fast enough for tens of thousands of
//! objects.

use std::{
    collections::HashMap,
    convert::Infallible,
    fmt,
    net::{SocketAddr, TcpListener},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

mod change;
mod path;
mod store;

use change::Change;
use path::RequestTarget;
use store::Store;

/// Request that the server has received.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiRequest {
    /// Method of the request.
    pub method: String,
    /// Path and query of the request.
    pub path: String,
    /// Body of the request; null if empty.
    pub body: Value,
}

/// Kubernetes API server in memory, which stops when dropped.
#[derive(Debug)]
pub struct ApiServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Sender whose drop stops the server's thread.
    _stop: mpsc::Sender<()>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Counter whose changes close every open connection.
    connection_generation: watch::Sender<u32>,
}

#[derive(Debug, Default)]
struct State {
    store: Store,
    is_unavailable: bool,
    /// Error statuses of the next responses, one each, in order.
    next_errors: Vec<u16>,
    /// Error statuses of the next responses, by request path.
    next_errors_by_path: Vec<(String, u16)>,
    /// Fixed responses by request path.
    fixed_responses: HashMap<String, Value>,
    requests: Vec<ApiRequest>,
    watches: Vec<Watcher>,
    reviews: HashMap<String, ReviewHandler>,
}

/// Handler of objects that are reviewed instead of stored, such as TokenReviews.
struct ReviewHandler(Box<dyn Fn(&Value) -> Value + Send>);

impl fmt::Debug for ReviewHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReviewHandler")
    }
}

#[derive(Debug)]
struct Watcher {
    target: RequestTarget,
    events: mpsc::UnboundedSender<Bytes>,
}

impl ApiServer {
    /// Starts a server on a free loopback port.
    pub fn start() -> Self {
        Self::start_at(TcpListener::bind("127.0.0.1:0").expect("a free port"))
    }

    /// Starts a server on a bound socket, possibly in another network namespace.
    pub fn start_at(listener: TcpListener) -> Self {
        let address = listener.local_addr().expect("a bound listener");
        listener.set_nonblocking(true).expect("a usable listener");
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            connection_generation: watch::Sender::new(0),
        });
        let (end, mut ended) = mpsc::channel::<()>(1);
        let served = Arc::clone(&shared);
        std::thread::spawn(move || {
            let runtime = ambit_rt::current_thread_runtime().expect("a runtime");
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                tokio::select! {
                    () = accept(listener, served) => {}
                    _ = ended.recv() => {}
                }
            });
        });
        Self {
            address,
            shared,
            _stop: end,
        }
    }

    /// Returns the base URL, `http://…`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns a kubeconfig for this server.
    pub fn kubeconfig(&self) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": self.url()}}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        })
        .to_string()
    }

    /// Stores an object, new or changed. `collection` is the path of all objects of the kind,
    /// for example `/api/v1/pods`.
    pub fn put(&self, collection: &str, object: Value) {
        let mut state = self.shared.state.lock();
        let change = state.store.put(collection, object);
        state.notify_watchers(&change);
    }

    /// Starts to serve a kind that has no objects yet, so that API discovery lists the kind.
    pub fn serve(&self, collection: &str, kind: &str) {
        self.shared.state.lock().store.add_kind(collection, kind);
    }

    /// Makes the handler `review` respond to POST requests for `collection` instead of storing the objects, for
    /// TokenReviews and similar kinds.
    pub fn set_review_handler(
        &self,
        collection: &str,
        review: impl Fn(&Value) -> Value + Send + 'static,
    ) {
        let review = ReviewHandler(Box::new(review));
        let mut state = self.shared.state.lock();
        state.reviews.insert(collection.to_owned(), review);
    }

    /// Deletes an object. Returns whether it existed.
    pub fn delete(&self, collection: &str, namespace: &str, name: &str) -> bool {
        let mut state = self.shared.state.lock();
        let change = state.store.delete(collection, namespace, name);
        if let Some(change) = &change {
            state.notify_watchers(change);
        }
        change.is_some()
    }

    /// Returns the current version of an object.
    pub fn get(&self, collection: &str, namespace: &str, name: &str) -> Option<Value> {
        let state = self.shared.state.lock();
        let object = state.store.get(collection, namespace, name);
        object.map(|object| Value::clone(object))
    }

    /// Lists the objects of a collection.
    pub fn list(&self, collection: &str) -> Vec<Value> {
        self.shared.state.lock().store.list(collection)
    }

    /// Switches an outage on or off; at its start, every open connection is closed.
    pub fn set_unavailable(&self, away: bool) {
        self.shared.state.lock().is_unavailable = away;
        if away {
            self.close_connections();
        }
    }

    /// Closes every open connection; new connections are served.
    pub fn close_connections(&self) {
        self.shared.state.lock().watches.clear();
        self.shared
            .connection_generation
            .send_modify(|count| *count += 1);
    }

    /// Drops the history of changes, so that no watch can be resumed from an earlier version.
    pub fn compact(&self) {
        self.shared.state.lock().store.compact();
    }

    /// Restarts the resource versions, as a restore of the store from a backup does.
    pub fn reset_versions(&self) {
        self.shared.state.lock().store.restart_versions();
    }

    /// Makes the next requests fail with these statuses, one each, in order.
    pub fn fail_next(&self, statuses: &[u16]) {
        self.shared.state.lock().next_errors.extend(statuses);
    }

    /// Makes the next requests of a path fail with these statuses, one each, in order.
    pub fn fail_next_at(&self, path: &str, statuses: &[u16]) {
        let failures = statuses.iter().map(|status| (path.to_owned(), *status));
        self.shared
            .state
            .lock()
            .next_errors_by_path
            .extend(failures);
    }

    /// Sets a fixed response for a path, which replaces its objects.
    pub fn set_fixed_response(&self, path: &str, answer: Value) {
        let mut state = self.shared.state.lock();
        state.fixed_responses.insert(path.to_owned(), answer);
    }

    /// Returns the requests that the server has received so far.
    pub fn requests(&self) -> Vec<ApiRequest> {
        self.shared.state.lock().requests.clone()
    }
}

impl State {
    fn notify_watchers(&mut self, change: &Change) {
        self.watches.retain(|watcher| {
            watcher
                .target
                .event(change)
                .is_none_or(|event| watcher.events.send(event).is_ok())
        });
    }
}

async fn accept(listener: tokio::net::TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        if shared.state.lock().is_unavailable {
            continue;
        }
        let mut cut = shared.connection_generation.subscribe();
        let shared = Arc::clone(&shared);
        let service = hyper::service::service_fn(move |request| {
            let shared = Arc::clone(&shared);
            async move { Ok::<_, Infallible>(respond_to(&shared, request).await) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(hyper_util::rt::TokioIo::new(stream), service);
        ambit_rt::spawn("api server connection", async move {
            tokio::select! {
                biased;
                // Responses in progress are aborted, too.
                _ = cut.changed() => {}
                // Clients may disconnect at any time.
                ended = connection => drop(ended),
            }
        });
    }
}

/// Response body that begins with a complete part, followed by a stream of parts.
#[derive(Debug)]
struct ResponseBody {
    complete_part: Option<Bytes>,
    streamed_parts: Option<mpsc::UnboundedReceiver<Bytes>>,
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(first) = self.complete_part.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        match &mut self.streamed_parts {
            Some(more) => more
                .poll_recv(context)
                .map(|next| next.map(|bytes| Ok(Frame::data(bytes)))),
            None => Poll::Ready(None),
        }
    }
}

fn respond(status: u16, body: &Value) -> Response<ResponseBody> {
    let answer = ResponseBody {
        complete_part: Some(body.to_string().into()),
        streamed_parts: None,
    };
    let mut response = Response::new(answer);
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

fn failure(status: u16, reason: &str) -> Response<ResponseBody> {
    respond(
        status,
        &json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": format!("{reason} (from a test)"), "reason": reason, "code": status,
        }),
    )
}

async fn respond_to(shared: &Shared, request: Request<Incoming>) -> Response<ResponseBody> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes());
    let body = body
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or(Value::Null);
    let mut state = shared.state.lock();
    state.requests.push(ApiRequest {
        method: head.method.to_string(),
        path: head.uri.to_string(),
        body: body.clone(),
    });
    if !state.next_errors.is_empty() {
        return failure(state.next_errors.remove(0), "Injected");
    }
    let path = head.uri.path();
    if let Some(index) = state
        .next_errors_by_path
        .iter()
        .position(|(at, _)| at == path)
    {
        let (_, status) = state.next_errors_by_path.remove(index);
        let reason = if status == 404 {
            "NotFound"
        } else {
            "Injected"
        };
        return failure(status, reason);
    }
    if let Some(answer) = state.fixed_responses.get(path) {
        return respond(200, answer);
    }
    let metadata_only = head
        .headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains("as=PartialObjectMetadata"));
    let Some(target) = RequestTarget::parse(&head.uri, metadata_only) else {
        let resources = state.store.discovery(head.uri.path());
        return resources.map_or_else(|| failure(404, "NotFound"), |list| respond(200, &list));
    };
    match (&head.method, target.name.is_some()) {
        (&Method::GET, false) if target.watch => open_watch(&mut state, target),
        (&Method::GET, false) => {
            let list = state.store.list_page(&target);
            respond(200, &list)
        }
        (&Method::GET, true) => state.store.find(&target).map_or_else(
            || failure(404, "NotFound"),
            |object| respond(200, &target.visible_part(&object)),
        ),
        (&Method::POST, false) if state.reviews.contains_key(&target.collection) => {
            let review = state.reviews.get(&target.collection);
            respond(201, &review.map_or(Value::Null, |review| (review.0)(&body)))
        }
        (&Method::POST, _) => apply_write(&mut state, &target, |store| store.create(&target, body)),
        (&Method::PUT, _) => apply_write(&mut state, &target, |store| store.replace(&target, body)),
        (&Method::PATCH, _) => apply_write(&mut state, &target, |store| {
            let apply = head
                .headers
                .get(header::CONTENT_TYPE)
                .is_some_and(|kind| kind.as_bytes().starts_with(b"application/apply-patch"));
            store.patch(&target, body, apply)
        }),
        (&Method::DELETE, true) => apply_write(&mut state, &target, |store| {
            store
                .delete(&target.collection, &target.namespace, target.name())
                .ok_or((404, "NotFound"))
        }),
        _ => failure(405, "MethodNotAllowed"),
    }
}

fn apply_write(
    state: &mut State,
    target: &RequestTarget,
    change: impl FnOnce(&mut Store) -> Result<Change, (u16, &'static str)>,
) -> Response<ResponseBody> {
    match change(&mut state.store) {
        Ok(change) => {
            state.notify_watchers(&change);
            respond(200, &target.visible_part(&change.object))
        }
        Err((status, reason)) => failure(status, reason),
    }
}

fn open_watch(state: &mut State, target: RequestTarget) -> Response<ResponseBody> {
    if state.is_unavailable {
        // The connection is about to be closed.
        return failure(503, "ServiceUnavailable");
    }
    let Some(since) = state.store.changes_since(target.from_version) else {
        return failure(410, "Expired");
    };
    let missed: Vec<u8> = since
        .iter()
        .filter_map(|change| target.event(change))
        .flatten()
        .collect();
    let (events, more) = mpsc::unbounded_channel();
    state.watches.push(Watcher { target, events });
    let mut response = Response::new(ResponseBody {
        // An empty part would end the body.
        complete_part: (!missed.is_empty()).then(|| missed.into()),
        streamed_parts: Some(more),
    });
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
