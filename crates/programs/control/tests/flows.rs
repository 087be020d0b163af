//! Tests of flow events for users: their access, with an API server in memory and a scripted proxy.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use ambit_control::{
    args::Args,
    run::{self, RunningControlPlane},
};
use ambit_issuer::Authority;
use ambit_model::Identity;
use ambit_testkit::{ApiServer, wait_until_some};
use ambit_tls::{TlsSettings, WorkloadCert};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use clap::Parser;
use http_body_util::{BodyExt as _, Empty};
use hyper::{Request, Response, body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

const NAMESPACES: &str = "/api/v1/namespaces";
const PODS: &str = "/api/v1/pods";
const SECRETS: &str = "/api/v1/secrets";
const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
/// Address of the scripted node proxy's pod.
const PROXY: &str = "127.77.0.9";

/// Namespaces whose flow events a user may read, as pairs of user and namespace; `*` is all namespaces.
type GrantedRights = Arc<Mutex<BTreeSet<(&'static str, &'static str)>>>;

struct FlowTestbed {
    server: ApiServer,
    rights: GrantedRights,
    running: RunningControlPlane,
    directory: tempfile::TempDir,
}

impl FlowTestbed {
    async fn start() -> Self {
        let server = ApiServer::start();
        for name in ["istio-system", "shop", "bank"] {
            let namespace =
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            server.put(NAMESPACES, namespace);
        }
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "zt-1", "namespace": "istio-system", "uid": "u1"},
            "spec": {"nodeName": "n1", "serviceAccountName": "ztunnel", "containers": [{"name": "c"}]},
            "status": {"phase": "Running", "podIP": PROXY, "podIPs": [{"ip": PROXY}]},
        });
        server.put(PODS, pod);
        let rights = GrantedRights::default();
        rights.lock().extend([("admin", "*"), ("dev", "shop")]);
        serve_reviews(&server, &rights);
        let directory = tempfile::tempdir().unwrap();
        let path = |file: &str| directory.path().join(file).display().to_string();
        std::fs::write(path("kubeconfig"), server.kubeconfig()).unwrap();
        let (kubeconfig, root) = (path("kubeconfig"), path("root.pem"));
        let listen = "127.0.0.1:0";
        let args = [
            "ambit-control",
            "--kubeconfig",
            &kubeconfig,
            "--root-cert-out",
            &root,
            "--listen-xds",
            listen,
            "--listen-monitoring",
            listen,
            "--listen-http",
            listen,
            "--listen-flows",
            listen,
            "--flows-check-seconds",
            "1",
        ];
        let running = run::start(&Args::parse_from(args)).await.unwrap();
        Self {
            server,
            rights,
            running,
            directory,
        }
    }

    /// Issues a certificate of the mesh's own CA for a service account.
    async fn certificate(&self, account: &str) -> WorkloadCert {
        let secret = || self.server.get(SECRETS, "istio-system", "istio-ca-secret");
        let secret = wait_until_some("the authority", secret).await;
        let text = |key: &str| {
            let data = secret["data"][key].as_str().unwrap();
            String::from_utf8(BASE64_STANDARD.decode(data).unwrap()).unwrap()
        };
        let (cert, key) = (text("ca-cert.pem"), text("ca-key.pem"));
        let authority = Authority::from_pem(&cert, &key, "", &cert).unwrap();
        let identity = Identity::new("cluster.local", "istio-system", account);
        let hour = Duration::from_secs(3600);
        let (chain, key) = authority
            .issue_workload(&identity, hour, SystemTime::now())
            .unwrap();
        let roots = authority.roots().to_vec();
        WorkloadCert::new(&TlsSettings::default(), chain, key, roots).unwrap()
    }

    async fn get(&self, query: &str, token: Option<&str>) -> Response<Incoming> {
        let root = std::fs::read_to_string(self.directory.path().join("root.pem")).unwrap();
        let mut roots = RootCertStore::empty();
        for root in ambit_tls::pem::parse_certificates(0, &root).unwrap() {
            roots.add(root).unwrap();
        }
        let config = ClientConfig::builder_with_provider(TlsSettings::default().provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(self.running.flows_address.unwrap())
            .await
            .unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await;
        let (mut requests, connection) = http1::handshake(TokioIo::new(stream.unwrap()))
            .await
            .unwrap();
        ambit_rt::spawn("connection", connection);
        let mut request = Request::get(format!("/flows{query}"));
        if let Some(token) = token {
            request = request.header("x-ambit-token", token);
        }
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        requests.send_request(request).await.unwrap()
    }

    async fn rejection(&self, query: &str, token: Option<&str>) -> (u16, String) {
        let response = self.get(query, token).await;
        let status = response.status().as_u16();
        assert_ne!(status, 200, "{query} is not refused");
        let text = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(text.to_vec()).unwrap())
    }
}

/// Makes the API server review tokens, which are the users' names; others are rejected.
fn serve_reviews(server: &ApiServer, rights: &GrantedRights) {
    server.set_review_handler(TOKEN_REVIEWS, |review| {
        let token = review["spec"]["token"].as_str().unwrap();
        // A token for another audience than the API server's would be accepted with the mesh's
        // audiences.
        let is_known = ["admin", "dev"].contains(&token) && review["spec"]["audiences"].is_null();
        let status = match is_known {
            true => json!({"authenticated": true, "user": {"username": token, "groups": ["team"]}}),
            false => json!({"authenticated": false}),
        };
        review_response(review, &status)
    });
    let rights = rights.clone();
    server.set_review_handler(ACCESS_REVIEWS, move |review| {
        let spec = &review["spec"];
        let attributes = &spec["resourceAttributes"];
        let resource = ["group", "resource", "verb"].map(|one| attributes[one].as_str().unwrap());
        assert_eq!(resource, ["ambit.io", "flows", "get"]);
        assert_eq!(spec["groups"], json!(["team"]));
        let user = spec["user"].as_str().unwrap();
        let namespace = attributes["namespace"].as_str().unwrap_or("*");
        let is_allowed = |namespace| {
            let mut rights = rights.lock().clone().into_iter();
            rights.any(|right| right == (user, namespace))
        };
        review_response(
            review,
            &json!({"allowed": is_allowed("*") || is_allowed(namespace)}),
        )
    });
}

fn review_response(review: &Value, status: &Value) -> Value {
    json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "metadata": {},
        "spec": review["spec"], "status": status})
}

/// Starts a scripted proxy that sends each received request line to the test, and one event to the reader.
async fn serve_fake_proxy(certificate: WorkloadCert) -> mpsc::UnboundedReceiver<String> {
    let listener = TcpListener::bind((PROXY, 15022)).await.unwrap();
    let (sender, receiver) = mpsc::unbounded_channel();
    let mut config = rustls::ServerConfig::clone(&certificate.server_config().unwrap());
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    ambit_rt::spawn("proxy", async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, sender) = (acceptor.clone(), sender.clone());
            ambit_rt::spawn("proxy connection", async move {
                let Ok(mut stream) = acceptor.accept(stream).await else {
                    return;
                };
                let chain = stream.get_ref().1.peer_certificates().unwrap();
                let peer = ambit_tls::peer_identity(chain).unwrap().to_string();
                let mut request = vec![0; 4096];
                let length = stream.read(&mut request).await.unwrap();
                let text = String::from_utf8_lossy(&request[..length]).into_owned();
                let line = text.lines().next().unwrap();
                sender.send(format!("{peer} {line}")).ok();
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n\r\n";
                let event = "{\"type\":\"lost\",\"sampled\":7,\"refusals\":0}\n";
                stream
                    .write_all(format!("{head}{event}").as_bytes())
                    .await
                    .unwrap();
                // Wait until the reader disconnects.
                let _ended = stream.read(&mut request).await;
            });
        }
    });
    receiver
}

/// Reads a response's lines until one contains this text.
async fn lines_until(response: Response<Incoming>, text: &str) -> String {
    assert_eq!(response.status(), 200);
    let mut body = response.into_body();
    let mut all = String::new();
    let deadline = Duration::from_secs(20);
    while !all.contains(text) {
        let frame = tokio::time::timeout(deadline, body.frame()).await;
        let Ok(Some(Ok(frame))) = frame else {
            panic!("no {text:?} in {all:?}");
        };
        all.push_str(&String::from_utf8_lossy(frame.data_ref().unwrap()));
    }
    all
}

#[tokio::test]
async fn users_read_what_the_api_server_permits() {
    let mesh = FlowTestbed::start().await;
    for (query, token, status, reason) in [
        ("", None, 401, "x-ambit-token"),
        ("", Some(""), 401, "x-ambit-token"),
        ("", Some("nobody"), 401, "does not accept the token"),
        (
            "?namespace=shop",
            Some("nobody"),
            401,
            "does not accept the token",
        ),
        ("", Some("dev"), 403, "in all"),
        (
            "?namespace=bank",
            Some("dev"),
            403,
            "flows.ambit.io in bank;",
        ),
        (
            "?namespace=shop&namespace=bank",
            Some("dev"),
            403,
            "in bank;",
        ),
        ("?confined=false", Some("dev"), 403, "in all"),
        ("?namespace=*", Some("dev"), 400, "no namespace"),
        ("?namespace=", Some("dev"), 400, "no namespace"),
        ("?form=shop/", Some("dev"), 400, "unknown parameter"),
    ] {
        let (got, text) = mesh.rejection(query, token).await;
        assert_eq!(got, status, "{query} {token:?}: {text}");
        assert!(text.contains(reason), "{query} {token:?}: {text}");
    }
    let many = "namespace=shop&".repeat(33);
    let (status, text) = mesh
        .rejection(&format!("?{many}refused=true"), Some("dev"))
        .await;
    assert_eq!(
        (status, text.contains("more than 32")),
        (400, true),
        "{text}"
    );
    mesh.running.stop().await;
}

#[tokio::test]
async fn events_are_confined_to_rights_that_may_be_revoked() {
    let mesh = FlowTestbed::start().await;
    let certificate = mesh.certificate("ztunnel").await;
    let mut requests = serve_fake_proxy(certificate).await;
    let own = "spiffe://cluster.local/ns/istio-system/sa/ambit-control";
    for (query, token, expected) in [
        ("", "admin", "/flows"),
        ("?namespace=shop", "admin", "/flows?namespace=shop"),
        (
            "?namespace=shop",
            "dev",
            "/flows?namespace=shop&confined=true",
        ),
        // A user cannot disable the confinement.
        (
            "?namespace=shop&confined=false",
            "dev",
            "/flows?namespace=shop&confined=true",
        ),
        (
            "?namespace=shop&confined=true",
            "admin",
            "/flows?namespace=shop",
        ),
    ] {
        let response = mesh.get(query, Some(token)).await;
        let lines = lines_until(response, "\"sampled\":7").await;
        let began = "{\"proxy\":\"pod istio-system/zt-1\",\"type\":\"began\"}\n";
        assert!(lines.contains(began), "{lines}");
        let request = requests.recv().await.unwrap();
        assert_eq!(request, format!("{own} GET {expected} HTTP/1.1"));
    }

    let response = mesh.get("?namespace=shop", Some("dev")).await;
    mesh.rights.lock().remove(&("dev", "shop"));
    let lines = lines_until(response, "no right to get flows.ambit.io in shop").await;
    assert!(lines.contains("\"proxy\":\"the control plane\""), "{lines}");
    mesh.running.stop().await;
}

#[tokio::test]
async fn api_server_outage_interrupts_no_reader() {
    let mesh = FlowTestbed::start().await;
    let response = mesh.get("?namespace=shop", Some("dev")).await;
    mesh.server.set_unavailable(true);
    let (status, text) = mesh.rejection("?namespace=shop", Some("dev")).await;
    assert_eq!(status, 503, "{text}");
    // Authorization checks fail meanwhile, and the stream continues: it ends because of the right,
    // not of the outage.
    mesh.rights.lock().remove(&("dev", "shop"));
    mesh.server.set_unavailable(false);
    lines_until(response, "no right to get flows.ambit.io in shop").await;
    mesh.running.stop().await;
}

#[tokio::test]
async fn readers_of_one_user_are_limited() {
    let mesh = FlowTestbed::start().await;
    let first = mesh.get("?namespace=shop", Some("dev")).await;
    let second = mesh.get("?namespace=shop", Some("dev")).await;
    let (status, text) = mesh.rejection("?namespace=shop", Some("dev")).await;
    assert_eq!(
        (status, text.contains("end another one")),
        (503, true),
        "{text}"
    );
    assert_eq!(mesh.get("", Some("admin")).await.status(), 200);
    drop((first, second));
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while mesh.get("?namespace=shop", Some("dev")).await.status() != 200 {
        assert!(
            tokio::time::Instant::now() < deadline,
            "places are not given back"
        );
    }
    mesh.running.stop().await;
}
