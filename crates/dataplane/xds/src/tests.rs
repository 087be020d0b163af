//! Tests of the client against a scripted control plane on a loopback socket.

mod not_understood;

use std::{
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use ambit_control_channel::{CallMetadata, TokenSource};
use ambit_model::{Authorization, Scope, Service, Workload};
use ambit_rt::{AbortOnDrop, spawn_abortable};
use ambit_wire::{
    discovery::{
        DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node, Resource,
        aggregated_discovery_service_server::{
            AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
        },
    },
    encode::{ADDRESS_TYPE_URL, AUTHORIZATION_TYPE_URL},
    security, workload as wire,
};
use prost::Message;
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot, watch},
    time::timeout,
};
use tokio_stream::{
    Stream, StreamExt,
    wrappers::{ReceiverStream, TcpListenerStream},
};
use tonic::{Request, Response, Status, Streaming, metadata::MetadataMap, transport::Endpoint};

use super::*;

const DEADLINE: Duration = Duration::from_secs(20);

async fn within_deadline<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(DEADLINE, future)
        .await
        .unwrap_or_else(|_| panic!("timed out: {what}"))
}

// === the control plane ===

/// Stream of a client as the control plane sees it.
struct Session {
    metadata: MetadataMap,
    requests: Streaming<DeltaDiscoveryRequest>,
    push: mpsc::Sender<Result<DeltaDiscoveryResponse, Status>>,
}

impl Session {
    async fn request(&mut self) -> DeltaDiscoveryRequest {
        within_deadline("a request", self.requests.message())
            .await
            .unwrap()
            .expect("the stream goes on")
    }

    async fn send(&self, type_url: &str, nonce: &str, resources: Vec<Resource>, gone: &[&str]) {
        let response = DeltaDiscoveryResponse {
            type_url: type_url.into(),
            nonce: nonce.into(),
            resources,
            removed_resources: gone.iter().map(ToString::to_string).collect(),
            ..DeltaDiscoveryResponse::default()
        };
        self.push.send(Ok(response)).await.unwrap();
    }
}

struct ScriptedServer(mpsc::Sender<Session>);

type Pushes = Pin<Box<dyn Stream<Item = Result<DeltaDiscoveryResponse, Status>> + Send>>;

#[tonic::async_trait]
impl AggregatedDiscoveryService for ScriptedServer {
    type DeltaAggregatedResourcesStream = Pushes;

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        let (push, pushes) = mpsc::channel(8);
        let metadata = request.metadata().clone();
        if metadata.get("refuse").is_some() {
            return Err(Status::unauthenticated("who are you"));
        }
        let session = Session {
            metadata,
            requests: request.into_inner(),
            push,
        };
        self.0
            .send(session)
            .await
            .map_err(|_| Status::unavailable("no test"))?;
        Ok(Response::new(Box::pin(ReceiverStream::new(pushes))))
    }
}

struct ControlPlane {
    address: String,
    sessions: mpsc::Receiver<Session>,
    _server: AbortOnDrop<()>,
}

impl ControlPlane {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (sender, sessions) = mpsc::channel(8);
        let service = AggregatedDiscoveryServiceServer::new(ScriptedServer(sender));
        let server = tonic::transport::Server::builder().add_service(service);
        let serving = async move {
            server
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
                .unwrap();
        };
        Self {
            address,
            sessions,
            _server: spawn_abortable("scripted control plane", serving),
        }
    }

    async fn accept_session(&mut self) -> Session {
        within_deadline("a stream", self.sessions.recv())
            .await
            .unwrap()
    }
}

// === the client ===

#[derive(Clone, Default)]
struct Recorder(Arc<RecordedEvents>);

#[derive(Default)]
struct RecordedEvents {
    updates: Mutex<Vec<MeshUpdate>>,
    received_messages: Mutex<Vec<(String, usize)>>,
    unknown_fields: Mutex<Vec<(String, u64)>>,
    cached: Mutex<Vec<(String, CachedResource)>>,
    complete_types: Mutex<Vec<String>>,
    endings: watch::Sender<Vec<StreamEnding>>,
    ready: watch::Sender<bool>,
}

impl UpdateHandler for Recorder {
    fn apply(&self, batch: &mut Vec<MeshUpdate>) {
        self.0.updates.lock().unwrap().append(batch);
    }

    fn on_ready(&self) {
        self.0.ready.send_replace(true);
    }

    fn on_resource_accepted(&self, type_url: &str, _name: &str, cached: &CachedResource) {
        let cached = (type_url.to_owned(), cached.clone());
        self.0.cached.lock().unwrap().push(cached);
    }

    fn on_push_cached(&self, type_url: &str, complete: bool) {
        if complete {
            self.0
                .complete_types
                .lock()
                .unwrap()
                .push(type_url.to_owned());
        }
    }

    fn on_unknown_fields(&self, type_url: &str, count: u64) {
        let counted = (type_url.to_owned(), count);
        self.0.unknown_fields.lock().unwrap().push(counted);
    }

    fn on_message_received(&self, type_url: &str, bytes: usize) {
        self.0
            .received_messages
            .lock()
            .unwrap()
            .push((type_url.to_owned(), bytes));
    }

    fn on_stream_ended(&self, ending: StreamEnding) {
        self.0.endings.send_modify(|endings| endings.push(ending));
    }
}

impl Recorder {
    fn updates(&self) -> Vec<MeshUpdate> {
        self.0.updates.lock().unwrap().clone()
    }

    async fn next_ending(&self) -> StreamEnding {
        let mut endings = self.0.endings.subscribe();
        let seen =
            within_deadline("an ending", endings.wait_for(|endings| !endings.is_empty())).await;
        *seen.unwrap().last().unwrap()
    }
}

fn options(address: &str, headers: CallMetadata, on_demand: bool) -> ClientOptions {
    ClientOptions {
        channel: Endpoint::from_shared(address.to_owned())
            .unwrap()
            .connect_lazy(),
        address: address.to_owned(),
        headers,
        role: Role::NodeProxy,
        node: Node {
            id: "the-node".into(),
            ..Node::default()
        },
        on_demand,
        invalid_policies: InvalidPolicyMode::Deny,
    }
}

fn headers() -> CallMetadata {
    CallMetadata::new(
        Some(TokenSource::Literal("token".into())),
        Some("c1"),
        [("extra", "1")],
    )
    .unwrap()
}

fn start(address: &str, headers: CallMetadata) -> (Recorder, AbortOnDrop<()>) {
    let recorder = Recorder::default();
    let client = Client::new(options(address, headers, false), recorder.clone(), None);
    (recorder, spawn_abortable("client under test", client.run()))
}

fn resource(name: &str, message: &impl Message, aliases: &[&str]) -> Resource {
    Resource {
        name: name.into(),
        version: "1f".into(),
        aliases: aliases.iter().map(ToString::to_string).collect(),
        resource: Some(prost_types::Any {
            type_url: "not looked at".into(),
            value: message.encode_to_vec(),
        }),
        ttl: None,
    }
}

fn workload(uid: &str) -> Resource {
    let workload = Workload {
        uid: uid.into(),
        ..Workload::default()
    };
    resource(
        uid,
        &wire::Address::from(wire::Workload::from(&workload)),
        &["/10.0.0.1"],
    )
}

fn service(hostname: &str) -> Resource {
    let service = Service {
        namespace: "ns".into(),
        hostname: hostname.into(),
        ..Service::default()
    };
    let name = format!("ns/{hostname}");
    resource(
        &name,
        &wire::Address::from(wire::Service::from(&service)),
        &[],
    )
}

fn policy(name: &str) -> Resource {
    let policy = Authorization {
        name: name.into(),
        namespace: "ns".into(),
        scope: Scope::Namespace,
        ..Authorization::default()
    };
    resource(
        &format!("ns/{name}"),
        &security::Authorization::from(&policy),
        &[],
    )
}

fn names(updates: &[MeshUpdate]) -> Vec<String> {
    let name = |update: &MeshUpdate| match update {
        MeshUpdate::Workload(workload) => workload.uid.to_string(),
        MeshUpdate::Service(service) => service.namespaced_hostname().to_string(),
        MeshUpdate::Policy(policy) => policy.key().to_string(),
        MeshUpdate::AddressRemoved(name) | MeshUpdate::PolicyRemoved(name) => format!("-{name}"),
        MeshUpdate::Waypoint(update) => format!("{update:?}"),
    };
    updates.iter().map(name).collect()
}

#[tokio::test]
async fn a_client_subscribes_applies_acknowledges_and_becomes_ready() {
    let mut control_plane = ControlPlane::start().await;
    let (recorder, _client) = start(&control_plane.address, headers());
    let mut session = control_plane.accept_session().await;
    for (key, value) in [
        ("authorization", "Bearer token"),
        ("clusterid", "c1"),
        ("extra", "1"),
    ] {
        assert_eq!(session.metadata.get(key).unwrap(), value);
    }
    for type_url in [ADDRESS_TYPE_URL, AUTHORIZATION_TYPE_URL] {
        let first = session.request().await;
        assert_eq!(first.type_url, type_url);
        assert_eq!(first.node.unwrap().id, "the-node");
        assert!(first.resource_names_subscribe.is_empty());
    }
    session
        .send(
            ADDRESS_TYPE_URL,
            "n1",
            vec![workload("u"), service("h")],
            &["old"],
        )
        .await;
    let ack = session.request().await;
    assert_eq!(
        (ack.response_nonce.as_str(), ack.error_detail, ack.node),
        ("n1", None, None)
    );
    assert_eq!(names(&recorder.updates()), ["u", "ns/h", "-old"]);
    assert!(!*recorder.0.ready.borrow());

    session
        .send(AUTHORIZATION_TYPE_URL, "n2", vec![policy("p")], &[])
        .await;
    assert_eq!(session.request().await.response_nonce, "n2");
    let mut ready = recorder.0.ready.subscribe();
    within_deadline("readiness", ready.wait_for(|ready| *ready))
        .await
        .unwrap();
    assert_eq!(names(&recorder.updates())[3], "ns/p");
    let received = recorder.0.received_messages.lock().unwrap().clone();
    assert_eq!(received.len(), 2);
    assert!(
        received[0].0 == ADDRESS_TYPE_URL && received[0].1 > 20,
        "{received:?}"
    );
}

#[tokio::test]
async fn bad_resources_are_refused_by_name_and_good_ones_applied() {
    let mut control_plane = ControlPlane::start().await;
    let (recorder, _client) = start(&control_plane.address, headers());
    let mut session = control_plane.accept_session().await;
    session.request().await;
    session.request().await;
    let nameless = resource("bad", &wire::Address::from(wire::Workload::default()), &[]);
    let mut garbage = workload("garbage");
    garbage.resource = Some(prost_types::Any {
        value: vec![0xff; 9],
        ..Default::default()
    });
    let resources = vec![nameless, workload("good"), garbage];
    session.send(ADDRESS_TYPE_URL, "n", resources, &[]).await;
    let nack = session.request().await;
    assert_eq!(nack.response_nonce, "n");
    let message = nack.error_detail.unwrap().message;
    assert!(
        message.contains("bad: workload.uid: is missing; garbage: "),
        "{message}"
    );
    assert_eq!(names(&recorder.updates()), ["good"]);
}

#[tokio::test]
async fn a_push_larger_than_a_batch_arrives_whole() {
    let mut control_plane = ControlPlane::start().await;
    let (recorder, _client) = start(&control_plane.address, headers());
    let mut session = control_plane.accept_session().await;
    session.request().await;
    session.request().await;
    let resources = (0..3000)
        .map(|number| workload(&format!("u{number}")))
        .collect();
    session.send(ADDRESS_TYPE_URL, "n", resources, &[]).await;
    assert_eq!(session.request().await.error_detail, None);
    assert_eq!(recorder.updates().len(), 3000);
}

#[tokio::test]
async fn reconnect_reports_the_known_versions() {
    let mut control_plane = ControlPlane::start().await;
    let (recorder, _client) = start(&control_plane.address, headers());
    let mut session = control_plane.accept_session().await;
    assert!(session.request().await.initial_resource_versions.is_empty());
    session.request().await;
    session
        .send(
            ADDRESS_TYPE_URL,
            "n",
            vec![workload("u"), service("h")],
            &[],
        )
        .await;
    session.request().await;
    drop(session);
    assert_eq!(recorder.next_ending().await, StreamEnding::Closed);
    let mut session = control_plane.accept_session().await;
    let mut versions: Vec<_> = session
        .request()
        .await
        .initial_resource_versions
        .into_iter()
        .collect();
    versions.sort();
    let held = |name: &str| (name.to_owned(), "1f".to_owned());
    assert_eq!(versions, [held("ns/h"), held("u")]);
}

#[tokio::test]
async fn cached_records_are_restored_and_only_changes_requested() {
    let mut control_plane = ControlPlane::start().await;
    let (recorder, client) = start(&control_plane.address, headers());
    let mut session = control_plane.accept_session().await;
    session.request().await;
    session.request().await;
    let all = vec![workload("u"), workload("v"), service("h")];
    session.send(ADDRESS_TYPE_URL, "1", all, &[]).await;
    session.request().await;
    session.send(ADDRESS_TYPE_URL, "2", vec![], &["v"]).await;
    session.request().await;
    let policies = vec![policy("p")];
    session
        .send(AUTHORIZATION_TYPE_URL, "3", policies, &[])
        .await;
    session.request().await;
    drop((client, session));
    let of = |type_url: &str| {
        let cached = recorder.0.cached.lock().unwrap().clone();
        cached
            .into_iter()
            .filter_map(move |(of, cached)| (of == type_url).then_some(cached))
            .collect::<Vec<_>>()
    };
    let complete = recorder.0.complete_types.lock().unwrap().clone();
    assert!(complete.contains(&ADDRESS_TYPE_URL.to_owned()));
    assert!(complete.contains(&AUTHORIZATION_TYPE_URL.to_owned()));

    let next = Recorder::default();
    let options = options(&control_plane.address, headers(), false);
    let mut client = Client::new(options, next.clone(), None);
    client.restore(ADDRESS_TYPE_URL, of(ADDRESS_TYPE_URL).into_iter());
    assert!(!*next.0.ready.borrow());
    client.restore(
        AUTHORIZATION_TYPE_URL,
        of(AUTHORIZATION_TYPE_URL).into_iter(),
    );
    assert!(*next.0.ready.borrow(), "without a control plane");
    assert_eq!(names(&next.updates()), ["u", "v", "ns/h", "-v", "ns/p"]);
    assert!(
        next.0.cached.lock().unwrap().is_empty(),
        "it is cached already"
    );
    let _client = spawn_abortable("client under test", client.run());
    let mut session = control_plane.accept_session().await;
    let versions = session.request().await.initial_resource_versions;
    let mut held: Vec<_> = versions.keys().map(String::as_str).collect();
    held.sort_unstable();
    assert_eq!(held, ["ns/h", "u"]);
}

#[tokio::test]
async fn demands_wake_all_waiters_once_the_response_is_applied() {
    let mut control_plane = ControlPlane::start().await;
    let recorder = Recorder::default();
    let (demands, receiver) = mpsc::channel(8);
    let options = options(&control_plane.address, headers(), true);
    let client = Client::new(options, recorder.clone(), Some(receiver));
    let _client = spawn_abortable("client under test", client.run());
    let mut session = control_plane.accept_session().await;
    let first = session.request().await;
    assert_eq!(first.resource_names_subscribe, ["*"]);
    assert_eq!(first.resource_names_unsubscribe, ["*"]);
    session.request().await;

    let demand = |name: &str| {
        let (done, answered) = oneshot::channel();
        let name = name.to_owned();
        demands
            .try_send(AddressDemand {
                name,
                resolved_sender: done,
            })
            .unwrap();
        answered
    };
    // By an alias, by two demands for the same name, and with a negative response.
    let by_alias = [demand("/10.0.0.1"), demand("/10.0.0.1")];
    let absent = demand("ns/none");
    for name in ["/10.0.0.1", "ns/none"] {
        let request = session.request().await;
        assert_eq!(request.resource_names_subscribe, [name]);
        assert_eq!(request.response_nonce, "");
    }
    session
        .send(ADDRESS_TYPE_URL, "n1", vec![workload("u")], &[])
        .await;
    for answered in by_alias {
        within_deadline("the answer", answered).await.unwrap();
        assert_eq!(names(&recorder.updates())[0], "u");
    }
    session
        .send(ADDRESS_TYPE_URL, "n2", vec![], &["ns/none"])
        .await;
    within_deadline("the negative answer", absent)
        .await
        .unwrap();
}

#[tokio::test]
async fn retry_after_a_refusal_uses_the_current_token() {
    let mut control_plane = ControlPlane::start().await;
    let refused = CallMetadata::new(None, None, [("refuse", "yes")]).unwrap();
    let (recorder, client) = start(&control_plane.address, refused);
    assert_eq!(recorder.next_ending().await, StreamEnding::Refused);
    drop(client);

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    std::fs::write(&path, "first").unwrap();
    let headers = CallMetadata::new(Some(TokenSource::File(path.clone())), None, []).unwrap();
    let (_recorder, _client) = start(&control_plane.address, headers);
    let session = control_plane.accept_session().await;
    assert_eq!(
        session.metadata.get("authorization").unwrap(),
        "Bearer first"
    );
    std::fs::write(&path, "second").unwrap();
    drop(session);
    let session = control_plane.accept_session().await;
    assert_eq!(
        session.metadata.get("authorization").unwrap(),
        "Bearer second"
    );
}

#[tokio::test]
async fn an_unreachable_control_plane_is_a_failed_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let (recorder, _client) = start(&address, headers());
    assert_eq!(recorder.next_ending().await, StreamEnding::ConnectFailed);
}

#[tokio::test]
async fn invalid_stream_keeps_the_known_resources() {
    let mut control_plane = ControlPlane::start().await;
    let (recorder, _client) = start(&control_plane.address, headers());
    let mut session = control_plane.accept_session().await;
    session.request().await;
    session.request().await;
    session
        .send(ADDRESS_TYPE_URL, "n", vec![workload("u")], &[])
        .await;
    session.request().await;
    session
        .send(
            "type.googleapis.com/unknown",
            "x",
            vec![workload("v")],
            &["u"],
        )
        .await;
    let ack = session.request().await;
    assert_eq!((ack.response_nonce.as_str(), ack.error_detail), ("x", None));
    session
        .push
        .send(Err(Status::internal("broken")))
        .await
        .unwrap();
    assert_eq!(recorder.next_ending().await, StreamEnding::Refused);
    let mut session = control_plane.accept_session().await;
    assert_eq!(session.request().await.initial_resource_versions.len(), 1);
    assert_eq!(names(&recorder.updates()), ["u"]);
    assert!(session.requests.next().await.is_some());
}
