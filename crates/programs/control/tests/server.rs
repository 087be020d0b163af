//! Tests of the whole control plane over real TLS and gRPC on loopback.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

use std::{
    collections::HashMap,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use ambit_certificates::CertificateRequest;
use ambit_control::{
    args::Args,
    run::{self, RunningControlPlane},
};
use ambit_control_channel::{CallMetadata, ChannelConfig, RootCa, TokenSource};
use ambit_model::{Identity, WaypointGateway, WaypointService};
use ambit_tls::{TlsSettings, WorkloadCert};
use ambit_wire::{
    citadel::{
        IstioCertificateRequest, istio_certificate_service_client::IstioCertificateServiceClient,
    },
    discovery::{
        DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node, Status as XdsStatus,
        aggregated_discovery_service_client::AggregatedDiscoveryServiceClient,
    },
    encode::{ADDRESS_TYPE_URL, AUTHORIZATION_TYPE_URL},
    records::RecordCodec as _,
    workload,
};
use clap::Parser;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use prost::Message;
use prost_types::{Struct, Value, value::Kind};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData};
use tokio::sync::mpsc;
use tonic::{Code, Request, Status, transport::Channel};

#[path = "server/debug.rs"]
mod debug;
#[path = "server/later.rs"]
mod later;
#[path = "server/telemetry.rs"]
mod telemetry;
#[path = "server/tokens.rs"]
mod tokens;

const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

const MANIFESTS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: v1
kind: Pod
metadata: {name: zt-1, namespace: istio-system, uid: zu1}
spec: {nodeName: n1, serviceAccountName: ztunnel, containers: []}
status: {phase: Running}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, uid: u1, labels: {app: web}, annotations: {ambient.istio.io/redirection: enabled}}
spec: {nodeName: n1, serviceAccountName: web, containers: []}
status: {phase: Running, podIPs: [{ip: 10.0.0.1}], conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: api-1, namespace: shop, uid: u2, labels: {app: api}}
spec: {nodeName: n2, serviceAccountName: api, containers: []}
status: {phase: Running, podIPs: [{ip: 10.0.0.2}], conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Service
metadata: {name: api, namespace: shop}
spec: {clusterIP: 10.96.0.1, selector: {app: api}, ports: [{port: 80, targetPort: 8080}]}
"#;

const POLICY: &str = r#"
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: p, namespace: shop}
spec: {selector: {matchLabels: {app: api}}, rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/web]}}]}]}
"#;

struct ControlPlane {
    dir: tempfile::TempDir,
    key: KeyPair,
    running: RunningControlPlane,
}

impl ControlPlane {
    async fn start() -> Self {
        Self::start_with(MANIFESTS, &[]).await
    }

    async fn start_with(objects: &str, more: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        std::fs::create_dir(dir.path().join("manifests")).unwrap();
        std::fs::write(dir.path().join("manifests/objects.yaml"), objects).unwrap();
        std::fs::write(dir.path().join("keys.pem"), public_pem(&key)).unwrap();
        let running = start(dir.path(), more).await;
        Self { dir, key, running }
    }

    /// Restarts the control plane with the same files.
    async fn restart(self) -> Self {
        let Self { dir, key, running } = self;
        running.stop().await;
        let running = start(dir.path(), &[]).await;
        Self { dir, key, running }
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.dir.path().join("manifests").join(file);
        let beside = path.with_extension("tmp");
        std::fs::write(&beside, text).unwrap();
        std::fs::rename(&beside, path).unwrap();
    }

    fn token(&self) -> String {
        self.token_of("istio-system", "ztunnel", "zt-1", "zu1")
    }

    fn token_of(&self, namespace: &str, account: &str, pod: &str, uid: &str) -> String {
        self.sign(&claims_of(namespace, account, pod, uid))
    }

    fn sign(&self, claims: &serde_json::Value) -> String {
        sign_claims(&self.key, claims)
    }

    fn channel(&self) -> Channel {
        let root = std::fs::read_to_string(self.dir.path().join("root.pem")).unwrap();
        ambit_control_channel::create_channel(&ChannelConfig {
            address: format!("https://localhost:{}", self.running.xds_address.port()),
            roots: RootCa::from_setting(&root),
            alternative_name: None,
            tls: TlsSettings::default(),
        })
        .unwrap()
    }

    async fn stream(&self) -> Stream {
        self.stream_as(&self.token()).await.unwrap()
    }

    async fn stream_as(&self, token: &str) -> Result<Stream, Status> {
        let (requests, outgoing) = mpsc::channel(16);
        let mut call = Request::new(tokio_stream::wrappers::ReceiverStream::new(outgoing));
        call.metadata_mut()
            .insert("authorization", format!("Bearer {token}").parse().unwrap());
        let mut client = AggregatedDiscoveryServiceClient::new(self.channel())
            .max_decoding_message_size(200 << 20);
        let opened =
            tokio::time::timeout(WAIT_TIMEOUT, client.delta_aggregated_resources(call)).await;
        let responses = opened.expect("no answer to the call")?.into_inner();
        Ok(Stream {
            requests,
            responses,
        })
    }

    async fn certificate(
        &self,
        token: &str,
        csr: &str,
        identity: Option<&str>,
        seconds: i64,
    ) -> Result<Vec<String>, Status> {
        let metadata = identity.map(|identity| Struct {
            fields: [("ImpersonatedIdentity".to_owned(), text(identity))].into(),
        });
        let mut call = Request::new(IstioCertificateRequest {
            csr: csr.to_owned(),
            validity_duration: seconds,
            metadata,
        });
        call.metadata_mut()
            .insert("authorization", format!("Bearer {token}").parse().unwrap());
        let mut client = IstioCertificateServiceClient::new(self.channel());
        Ok(client
            .create_certificate(call)
            .await?
            .into_inner()
            .cert_chain)
    }

    /// Requests a page of the monitoring port.
    async fn page(&self, path: &str) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(self.running.monitoring_address)
            .await
            .unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn page_until(&self, path: &str, part: &str) -> String {
        let begin = std::time::Instant::now();
        loop {
            let page = self.page(path).await;
            if page.contains(part) {
                return page;
            }
            assert!(
                begin.elapsed() < WAIT_TIMEOUT,
                "{path} never contains {part:?}: {page}"
            );
            tokio::task::yield_now().await;
        }
    }
}

fn claims_of(namespace: &str, account: &str, pod: &str, uid: &str) -> serde_json::Value {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    serde_json::json!({
        "iss": "test", "aud": ["istio-ca"], "iat": now, "exp": now + 600,
        "sub": format!("system:serviceaccount:{namespace}:{account}"),
        "kubernetes.io": {
            "namespace": namespace,
            "serviceaccount": {"name": account, "uid": "s"},
            "pod": {"name": pod, "uid": uid},
        },
    })
}

fn sign_claims(key: &KeyPair, claims: &serde_json::Value) -> String {
    let key = EncodingKey::from_ec_pem(key.serialize_pem().as_bytes()).unwrap();
    jsonwebtoken::encode(&Header::new(Algorithm::ES256), claims, &key).unwrap()
}

async fn start(dir: &Path, more: &[&str]) -> RunningControlPlane {
    let path = |name: &str| dir.join(name).display().to_string();
    let (manifests, keys, ca, root) = (
        path("manifests"),
        path("keys.pem"),
        path("ca"),
        path("root.pem"),
    );
    let mut args = vec![
        "ambit-control",
        "--manifests",
        &manifests,
        "--listen-monitoring",
        "127.0.0.1:0",
        "--token-keys",
        &keys,
        "--ca-dir",
        &ca,
        "--root-cert-out",
        &root,
    ];
    args.extend(more);
    if !more.contains(&"--listen-xds") {
        args.extend(["--listen-xds", "127.0.0.1:0"]);
    }
    run::start(&Args::parse_from(args)).await.unwrap()
}

struct Stream {
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: tonic::Streaming<DeltaDiscoveryResponse>,
}

impl Stream {
    async fn send(&self, request: DeltaDiscoveryRequest) {
        self.requests.send(request).await.unwrap();
    }

    async fn next(&mut self) -> Result<DeltaDiscoveryResponse, Status> {
        match tokio::time::timeout(WAIT_TIMEOUT, self.responses.message()).await {
            Ok(Ok(Some(response))) => Ok(response),
            Ok(Ok(None)) => panic!("the stream ended without a status"),
            Ok(Err(status)) => Err(status),
            Err(_) => panic!("no response"),
        }
    }

    async fn subscribe(&mut self, type_url: &str) -> DeltaDiscoveryResponse {
        self.send(first_request(type_url)).await;
        let response = self.next().await.unwrap();
        self.ack(&response).await;
        response
    }

    async fn ack(&self, response: &DeltaDiscoveryResponse) {
        self.send(DeltaDiscoveryRequest {
            type_url: response.type_url.clone(),
            response_nonce: response.nonce.clone(),
            ..DeltaDiscoveryRequest::default()
        })
        .await;
    }
}

fn text(text: &str) -> Value {
    Value {
        kind: Some(Kind::StringValue(text.to_owned())),
    }
}

fn node(id: &str, namespace: &str) -> Node {
    let fields = [
        ("NAMESPACE", namespace),
        ("NODE_NAME", "n1"),
        ("NAME", "zt-1"),
    ];
    Node {
        id: id.to_owned(),
        metadata: Some(Struct {
            fields: fields
                .into_iter()
                .map(|(name, value)| (name.to_owned(), text(value)))
                .collect(),
        }),
        ..Node::default()
    }
}

fn first_request(type_url: &str) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        node: Some(node(
            "ztunnel~10.0.0.9~zt-1.istio-system~istio-system.svc.cluster.local",
            "istio-system",
        )),
        type_url: type_url.to_owned(),
        ..DeltaDiscoveryRequest::default()
    }
}

fn names(response: &DeltaDiscoveryResponse) -> Vec<&str> {
    response
        .resources
        .iter()
        .map(|resource| resource.name.as_str())
        .collect()
}

fn public_pem(key: &KeyPair) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(key.subject_public_key_info());
    format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
}

const API_POD: &str = "Kubernetes//Pod/shop/api-1";
const WEB_POD: &str = "Kubernetes//Pod/shop/web-1";
const SERVICE: &str = "shop/api.shop.svc.cluster.local";

#[tokio::test]
async fn node_proxy_gets_all_records_and_changes() {
    let plane = ControlPlane::start().await;
    let mut stream = plane.stream().await;
    let addresses = stream.subscribe(ADDRESS_TYPE_URL).await;
    assert_eq!(names(&addresses), [API_POD, WEB_POD, SERVICE]);
    let resource = addresses.resources[0].resource.as_ref().unwrap();
    let address = workload::Address::decode(resource.value.as_slice()).unwrap();
    let Some(workload::address::Type::Workload(api)) = address.r#type else {
        panic!("{address:?}")
    };
    assert_eq!(api.services[SERVICE].ports[0].target_port, 8080);
    assert!(
        stream
            .subscribe(AUTHORIZATION_TYPE_URL)
            .await
            .resources
            .is_empty()
    );
    // A policy is sent before the workload that references it.
    plane.write("policy.yaml", POLICY);
    let policies = stream.next().await.unwrap();
    assert_eq!(
        (policies.type_url.as_str(), names(&policies)),
        (AUTHORIZATION_TYPE_URL, vec!["shop/p"])
    );
    stream.ack(&policies).await;
    let addresses = stream.next().await.unwrap();
    assert_eq!(names(&addresses), [API_POD]);
    stream.ack(&addresses).await;
    // Both are deleted: the workload first.
    std::fs::remove_file(plane.dir.path().join("manifests/policy.yaml")).unwrap();
    let addresses = stream.next().await.unwrap();
    assert_eq!(names(&addresses), [API_POD]);
    stream.ack(&addresses).await;
    let policies = stream.next().await.unwrap();
    assert_eq!(policies.removed_resources, ["shop/p"]);
    // A pod is deleted.
    let without: Vec<_> = MANIFESTS
        .split("\n---\n")
        .filter(|text| !text.contains("name: api-1"))
        .collect();
    stream.ack(&policies).await;
    plane.write("objects.yaml", &without.join("\n---\n"));
    assert_eq!(stream.next().await.unwrap().removed_resources, [API_POD]);
    plane.running.stop().await;
}

#[tokio::test]
async fn rejection_is_reported_and_not_resent_before_a_change() {
    let plane = ControlPlane::start().await;
    let mut stream = plane.stream().await;
    stream.send(first_request(ADDRESS_TYPE_URL)).await;
    let response = stream.next().await.unwrap();
    stream
        .send(DeltaDiscoveryRequest {
            type_url: response.type_url.clone(),
            response_nonce: response.nonce.clone(),
            error_detail: Some(XdsStatus {
                message: "web-1: will not do".into(),
                ..XdsStatus::default()
            }),
            ..DeltaDiscoveryRequest::default()
        })
        .await;
    let page = plane.page_until("/debug/syncz", "will not do").await;
    assert!(
        page.contains("ztunnel~10.0.0.9~zt-1") && page.contains("ERROR"),
        "{page}"
    );
    let metrics = plane.page("/metrics").await;
    assert!(
        metrics.contains("pilot_total_xds_rejects{type=\"WDS\"} 1"),
        "{metrics}"
    );
    assert!(metrics.contains("pilot_xds 1"), "{metrics}");
    plane.write("objects.yaml", &MANIFESTS.replace("10.0.0.2", "10.0.0.3"));
    assert_eq!(names(&stream.next().await.unwrap()), [API_POD]);
    plane.running.stop().await;
}

#[tokio::test]
async fn client_gets_only_missing_records_after_a_restart() {
    let plane = ControlPlane::start().await;
    let mut stream = plane.stream().await;
    let addresses = stream.subscribe(ADDRESS_TYPE_URL).await;
    let mut known: HashMap<String, String> = addresses
        .resources
        .iter()
        .map(|resource| (resource.name.clone(), resource.version.clone()))
        .collect();
    let root = std::fs::read(plane.dir.path().join("root.pem")).unwrap();
    let plane = plane.restart().await;
    let status = stream.next().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert_eq!(
        std::fs::read(plane.dir.path().join("root.pem")).unwrap(),
        root,
        "the root stays"
    );
    known.insert("Kubernetes//Pod/shop/gone".into(), "1".into());
    known.insert(API_POD.into(), "older".into());
    let mut stream = plane.stream().await;
    stream
        .send(DeltaDiscoveryRequest {
            initial_resource_versions: known,
            ..first_request(ADDRESS_TYPE_URL)
        })
        .await;
    let response = stream.next().await.unwrap();
    assert_eq!(
        (names(&response), response.removed_resources.join(",")),
        (vec![API_POD], "Kubernetes//Pod/shop/gone".into())
    );
    plane.running.stop().await;
}

#[tokio::test]
async fn single_records_are_sent_on_demand() {
    let plane = ControlPlane::start().await;
    let mut stream = plane.stream().await;
    stream
        .send(DeltaDiscoveryRequest {
            resource_names_subscribe: vec!["*".into()],
            resource_names_unsubscribe: vec!["*".into()],
            ..first_request(ADDRESS_TYPE_URL)
        })
        .await;
    let response = stream.next().await.unwrap();
    assert_eq!(names(&response), [WEB_POD], "what runs on its own node");
    stream.ack(&response).await;
    for (key, expected, removed) in [
        ("/10.96.0.1", vec![API_POD, SERVICE], vec![]),
        ("/192.0.2.9", vec![], vec!["/192.0.2.9"]),
    ] {
        stream
            .send(DeltaDiscoveryRequest {
                type_url: ADDRESS_TYPE_URL.into(),
                resource_names_subscribe: vec![key.into()],
                ..DeltaDiscoveryRequest::default()
            })
            .await;
        let response = stream.next().await.unwrap();
        assert_eq!(
            (
                names(&response),
                response
                    .removed_resources
                    .iter()
                    .map(String::as_str)
                    .collect()
            ),
            (expected, removed)
        );
        stream.ack(&response).await;
    }
    plane.running.stop().await;
}

#[tokio::test]
async fn callers_with_a_bad_token_or_claim_are_rejected() {
    let plane = ControlPlane::start().await;
    for token in ["", "nonsense", "a.b.c"] {
        let status = plane.stream_as(token).await.err().unwrap();
        assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
        assert_eq!(
            status.message(),
            "the token is not accepted",
            "the reason is not answered"
        );
    }
    // A service account that is not a node proxy's.
    let web = plane.token_of("shop", "web", "web-1", "u1");
    assert_eq!(
        plane.stream_as(&web).await.err().unwrap().code(),
        Code::PermissionDenied
    );
    let id = "ztunnel~10.0.0.9~zt-1.istio-system~istio-system.svc.cluster.local";
    for (sent, code) in [
        (None, Code::InvalidArgument),
        (
            Some(node("ztunnel~10.0.0.9~zt-1", "istio-system")),
            Code::InvalidArgument,
        ),
        (
            Some(node("ztunnel~nowhere~zt-1.istio-system~d", "istio-system")),
            Code::InvalidArgument,
        ),
        (
            Some(node("browser~10.0.0.9~zt-1.istio-system~d", "istio-system")),
            Code::InvalidArgument,
        ),
        (
            Some(node(&"x".repeat(10_000), "istio-system")),
            Code::InvalidArgument,
        ),
        (Some(node(id, "shop")), Code::PermissionDenied),
        (Some(node(id, "")), Code::PermissionDenied),
    ] {
        let mut stream = plane.stream().await;
        stream
            .send(DeltaDiscoveryRequest {
                node: sent.clone(),
                ..first_request(ADDRESS_TYPE_URL)
            })
            .await;
        let status = stream.next().await.unwrap_err();
        assert_eq!(status.code(), code, "{sent:?} {status:?}");
    }
    plane.page_until("/metrics", "pilot_xds 0").await;
    plane.running.stop().await;
}

#[tokio::test]
async fn oversized_subscription_ends_only_its_own_stream() {
    let plane = ControlPlane::start().await;
    let mut good = plane.stream().await;
    good.subscribe(ADDRESS_TYPE_URL).await;
    let mut greedy = plane.stream().await;
    greedy
        .send(DeltaDiscoveryRequest {
            resource_names_subscribe: vec!["x".repeat(5000)],
            ..first_request(ADDRESS_TYPE_URL)
        })
        .await;
    assert_eq!(
        greedy.next().await.unwrap_err().code(),
        Code::ResourceExhausted
    );
    plane.write("objects.yaml", &MANIFESTS.replace("10.0.0.2", "10.0.0.3"));
    assert_eq!(names(&good.next().await.unwrap()), [API_POD]);
    plane.running.stop().await;
}

#[tokio::test]
async fn node_proxy_gets_certificates_of_its_nodes_pods() {
    let plane = ControlPlane::start().await;
    let identity = Identity::new("cluster.local", "shop", "web");
    let request = CertificateRequest::new(&identity).unwrap();
    plane.page_until("/ready", "200 OK").await;
    let chain = plane
        .certificate(
            &plane.token(),
            &request.pem,
            Some(&identity.to_string()),
            3600,
        )
        .await
        .unwrap();
    let certificate =
        WorkloadCert::from_response(&TlsSettings::default(), &identity, request.key, &chain)
            .unwrap();
    assert_eq!(certificate.identity(), &identity);
    let life = certificate
        .not_after()
        .duration_since(certificate.not_before())
        .unwrap();
    assert_eq!(life, Duration::from_secs(3600 + 120));
    assert_eq!(
        chain.last().unwrap(),
        &std::fs::read_to_string(plane.dir.path().join("root.pem")).unwrap()
    );
    // Without impersonation the caller gets its own identity, whatever names the request has.
    let own = Identity::new("cluster.local", "istio-system", "ztunnel");
    let request = CertificateRequest::new(&identity).unwrap();
    let chain = plane
        .certificate(&plane.token(), &request.pem, None, 0)
        .await
        .unwrap();
    let certificate =
        WorkloadCert::from_response(&TlsSettings::default(), &own, request.key, &chain).unwrap();
    assert_eq!(certificate.identity(), &own);
    plane.running.stop().await;
}

#[tokio::test]
async fn rejected_certificate_requests_reveal_no_reason() {
    let plane = ControlPlane::start().await;
    plane.page_until("/ready", "200 OK").await;
    let web = Identity::new("cluster.local", "shop", "web");
    let request = CertificateRequest::new(&web).unwrap();
    let web = web.to_string();
    let token = plane.token();
    let other_uid = plane.token_of("istio-system", "ztunnel", "zt-1", "zu0");
    let not_trusted = plane.token_of("shop", "web", "web-1", "u1");
    for (token, csr, identity, seconds, code) in [
        (
            token.as_str(),
            request.pem.as_str(),
            "spiffe://cluster.local/ns/shop/sa/api",
            0,
            Code::Unauthenticated,
        ),
        (
            &token,
            &request.pem,
            "spiffe://other/ns/shop/sa/web",
            0,
            Code::Unauthenticated,
        ),
        (&token, &request.pem, "nonsense", 0, Code::Unauthenticated),
        (&other_uid, &request.pem, &web, 0, Code::Unauthenticated),
        (&not_trusted, &request.pem, &web, 0, Code::Unauthenticated),
        ("nonsense", &request.pem, &web, 0, Code::Unauthenticated),
        (&token, "nonsense", &web, 0, Code::InvalidArgument),
        (&token, "", &web, 0, Code::InvalidArgument),
    ] {
        let status = plane
            .certificate(token, csr, Some(identity), seconds)
            .await
            .unwrap_err();
        assert_eq!(status.code(), code, "{identity} {status:?}");
        assert!(
            !status.message().contains("node") && !status.message().contains("pod"),
            "{status:?}"
        );
    }
    // A request with an invalid signature: the key is not the sender's.
    let (head, tail) = request.pem.split_at(request.pem.len() / 2);
    let middle = if tail.starts_with('A') { "B" } else { "A" };
    let forged = format!("{head}{middle}{}", &tail[1..]);
    let status = plane
        .certificate(&token, &forged, Some(&web), 0)
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    let metrics = plane.page("/metrics").await;
    assert!(
        metrics.contains("citadel_server_csr_count{outcome=\"denied\"} 5"),
        "{metrics}"
    );
    plane.running.stop().await;
}

#[tokio::test]
async fn new_pod_gets_its_certificate_at_once() {
    let plane = ControlPlane::start().await;
    plane.page_until("/ready", "200 OK").await;
    let new = Identity::new("cluster.local", "shop", "new");
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: new-1, namespace: shop, uid: u9}\nspec: {nodeName: n1, serviceAccountName: new}\n";
    let request = CertificateRequest::new(&new).unwrap();
    let token = plane.token();
    let ask = || {
        let identity = Some("spiffe://cluster.local/ns/shop/sa/new");
        plane.certificate(&token, &request.pem, identity, 0)
    };
    // The certificate is requested before the pod is known: the response waits for it.
    let (answer, ()) = tokio::join!(ask(), async { plane.write("new.yaml", pod) });
    answer.unwrap();
    plane.running.stop().await;
}

#[tokio::test]
async fn invalid_objects_are_reported_and_the_rest_is_served() {
    let plane = ControlPlane::start_with(MANIFESTS, &[]).await;
    let mut stream = plane.stream().await;
    stream.subscribe(ADDRESS_TYPE_URL).await;
    stream.subscribe(AUTHORIZATION_TYPE_URL).await;
    plane.write("policy.yaml", POLICY);
    for _ in 0..2 {
        let response = stream.next().await.unwrap();
        stream.ack(&response).await;
    }
    plane.write(
        "policy.yaml",
        &POLICY.replace(
            "principals: [cluster.local/ns/shop/sa/web]",
            "ipBlocks: [nonsense]",
        ),
    );
    let page = plane
        .page_until(
            "/debug/problems",
            "spec.rules[0].from[0].source.ipBlocks[0]",
        )
        .await;
    assert!(
        page.contains("AuthorizationPolicy shop/p") && page.contains("policy.yaml:2"),
        "{page}"
    );
    plane.write("broken.yaml", "kind: Pod\nmetadata: {name: [\n");
    let page = plane.page_until("/debug/problems", "broken.yaml:").await;
    assert!(page.contains("not YAML"), "{page}");
    let dump = plane.page("/debug/ambientz").await;
    assert!(
        dump.contains("cluster.local/ns/shop/sa/web"),
        "the last good policy stays: {dump}"
    );
    // Other objects are updated as before; nothing was pushed for the invalid ones.
    plane.write("objects.yaml", &MANIFESTS.replace("10.0.0.2", "10.0.0.3"));
    assert_eq!(names(&stream.next().await.unwrap()), [API_POD]);
    plane.running.stop().await;
}

#[tokio::test]
async fn bytes_other_than_tls_are_rejected() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let plane = ControlPlane::start().await;
    let mut open = Vec::new();
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 4096],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"",
    ] {
        let mut stream = tokio::net::TcpStream::connect(plane.running.xds_address)
            .await
            .unwrap();
        stream.write_all(bytes).await.unwrap();
        open.push(stream);
    }
    let mut end = Vec::new();
    // The peer gets a GOAWAY and is disconnected; a silent one may stay until its timeout.
    tokio::time::timeout(WAIT_TIMEOUT, open[0].read_to_end(&mut end))
        .await
        .unwrap()
        .ok();
    let mut stream = plane.stream().await;
    assert_eq!(stream.subscribe(ADDRESS_TYPE_URL).await.resources.len(), 3);
    plane.running.stop().await;
}

/// Opens a connection from a separate address, completes the handshake, and never sends a request.
async fn idle_stream(
    plane: &ControlPlane,
    source: &str,
) -> tokio_rustls::client::TlsStream<tokio::net::TcpStream> {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let mut roots = rustls::RootCertStore::empty();
    let root = CertificateDer::from_pem_file(plane.dir.path().join("root.pem")).unwrap();
    roots.add(root).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let mut config = rustls::ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(source.parse().unwrap()).unwrap();
    let stream = socket.connect(plane.running.xds_address).await.unwrap();
    let name = "localhost".try_into().unwrap();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    connector.connect(name, stream).await.unwrap()
}

#[tokio::test]
async fn idle_connections_evict_only_those_of_their_address() {
    use tokio::io::AsyncReadExt;
    let plane = ControlPlane::start().await;
    let mut stream = plane.stream().await;
    stream.subscribe(ADDRESS_TYPE_URL).await;
    let mut modest = idle_stream(&plane, "127.0.0.8:0").await;
    let mut greedy = Vec::new();
    for _ in 0..40 {
        greedy.push(idle_stream(&plane, "127.0.0.9:0").await);
    }
    let page = plane.page_until("/metrics", "ambit_callers_closed{reason=\"displaced\"} 8\n");
    page.await;
    let (mut first, mut last) = (greedy.remove(0), greedy.pop().unwrap());
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(WAIT_TIMEOUT, first.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the oldest connection had to go");
    // Neither the latest connection nor that of another address is closed: they are only silent.
    for open in [&mut last, &mut modest] {
        let settings = open.read(&mut [0; 4096]).await.unwrap();
        assert!(settings > 0, "the server has begun to speak HTTP/2");
    }
    stream.subscribe(AUTHORIZATION_TYPE_URL).await;
    let mut another = plane.stream().await;
    another.subscribe(ADDRESS_TYPE_URL).await;
    plane.running.stop().await;
}

#[tokio::test]
async fn repeated_bad_tokens_close_the_connection() {
    let plane = ControlPlane::start().await;
    let channel = plane.channel();
    for _ in 0..8 {
        let mut call = Request::new(IstioCertificateRequest::default());
        let bad = "Bearer nonsense".parse().unwrap();
        call.metadata_mut().insert("authorization", bad);
        let mut client = IstioCertificateServiceClient::new(channel.clone());
        let refused = client.create_certificate(call).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated, "{refused:?}");
    }
    let closed = "ambit_callers_closed{reason=\"refused\"} 1\n";
    plane.page_until("/metrics", closed).await;
    plane.running.stop().await;
}

#[tokio::test]
async fn debug_pages_reject_foreign_host_names() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let plane = ControlPlane::start().await;
    for (path, status) in [
        ("/debug/ambientz", "403"),
        ("/debug/waypointz", "403"),
        ("/debug/config_dump", "403"),
        ("/debug/syncz", "403"),
        ("/debug/problems", "403"),
        ("/debug/registryz", "403"),
        ("/debug/configz", "403"),
        ("/debug", "403"),
        ("/metrics", "200"),
        ("/version", "200"),
        ("//version", "200"),
        ("//debug/syncz", "403"),
    ] {
        let mut stream = tokio::net::TcpStream::connect(plane.running.monitoring_address)
            .await
            .unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: mesh.example\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{path}: {answer}"
        );
    }
    plane.running.stop().await;
}

/// Records that Ambit's xDS client hands to its node proxy, as texts.
struct PublishedUpdates(std::sync::mpsc::Sender<String>);

impl ambit_xds::UpdateHandler for PublishedUpdates {
    fn apply(&self, batch: &mut Vec<ambit_xds::MeshUpdate>) {
        use ambit_xds::MeshUpdate;
        for update in batch.drain(..) {
            let text = match update {
                MeshUpdate::Workload(workload) => format!(
                    "+{} {} {:?}",
                    workload.uid,
                    workload.identity(),
                    workload.authorization_policies
                ),
                MeshUpdate::Service(service) => format!("+{}", service.namespaced_hostname()),
                MeshUpdate::Policy(policy) => format!("+{}", policy.key()),
                MeshUpdate::AddressRemoved(name) | MeshUpdate::PolicyRemoved(name) => {
                    format!("-{name}")
                }
                MeshUpdate::Waypoint(update) => panic!("a node proxy is sent {update:?}"),
            };
            self.0.send(text).unwrap();
        }
    }

    fn on_ready(&self) {
        self.0.send("ready".to_owned()).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_proxy_client_follows_the_mesh_through_a_restart() {
    let plane = ControlPlane::start().await;
    let (sender, handed) = std::sync::mpsc::channel::<String>();
    let wait = |expected: &str| loop {
        let text = handed.recv_timeout(WAIT_TIMEOUT).unwrap();
        assert!(
            !text.starts_with('-') || text == expected,
            "{text} while waiting for {expected}"
        );
        if text == expected {
            return;
        }
    };
    let xds = plane.running.xds_address;
    let options = |plane: &ControlPlane| ambit_xds::ClientOptions {
        channel: plane.channel(),
        address: xds.to_string(),
        headers: CallMetadata::new(
            Some(TokenSource::Literal(plane.token())),
            Some("Kubernetes"),
            [],
        )
        .unwrap(),
        role: ambit_xds::Role::NodeProxy,
        node: first_request(ADDRESS_TYPE_URL).node.unwrap(),
        on_demand: false,
        invalid_policies: ambit_xds::InvalidPolicyMode::Deny,
    };
    let client = ambit_xds::Client::new(options(&plane), PublishedUpdates(sender), None);
    let client = ambit_rt::spawn_abortable("client", client.run());
    wait(&format!("+{SERVICE}"));
    wait("ready");
    plane.write("policy.yaml", POLICY);
    wait("+shop/p");
    wait(&format!(
        "+{API_POD} spiffe://cluster.local/ns/shop/sa/api [\"shop/p\"]"
    ));
    // While no control plane serves, one object changes and another is deleted.
    let ControlPlane { dir, key, running } = plane;
    running.stop().await;
    let without: Vec<_> = MANIFESTS
        .split("\n---\n")
        .filter(|text| !text.contains("name: web-1"))
        .collect();
    std::fs::write(
        dir.path().join("manifests/objects.yaml"),
        without.join("\n---\n"),
    )
    .unwrap();
    std::fs::remove_file(dir.path().join("manifests/policy.yaml")).unwrap();
    let listen = xds.to_string();
    let running = start(dir.path(), &["--listen-xds", &listen]).await;
    let plane = ControlPlane { dir, key, running };
    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.push(handed.recv_timeout(WAIT_TIMEOUT).unwrap());
    }
    seen.sort();
    let changed = format!("+{API_POD} spiffe://cluster.local/ns/shop/sa/api []");
    assert_eq!(seen, [changed, format!("-{WEB_POD}"), "-shop/p".to_owned()]);
    drop(client);
    plane.running.stop().await;
}

#[tokio::test]
async fn aged_connection_ends_in_order_and_resumes_with_changes() {
    let plane = ControlPlane::start_with(MANIFESTS, &["--max-connection-seconds", "1"]).await;
    let mut stream = plane.stream().await;
    let all = stream.subscribe(ADDRESS_TYPE_URL).await;
    let ended = stream.next().await.unwrap_err();
    assert_eq!(ended.code(), Code::Unavailable);
    assert!(
        ended.message().starts_with("transport is closing"),
        "{ended}"
    );
    let mut request = first_request(ADDRESS_TYPE_URL);
    let versions = all.resources.iter();
    request.initial_resource_versions = versions
        .map(|resource| (resource.name.clone(), resource.version.clone()))
        .collect();
    // On a busy machine, a connection may reach its age before it has sent the request.
    let resumed = loop {
        let mut again = plane.stream().await;
        if again.requests.send(request.clone()).await.is_err() {
            continue;
        }
        match again.next().await {
            Ok(response) => break response,
            Err(ended) => assert_eq!(ended.code(), Code::Unavailable),
        }
    };
    assert!(resumed.resources.is_empty());
    plane.running.stop().await;
}

const WAYPOINT: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: wp, namespace: shop}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
---
apiVersion: v1
kind: Pod
metadata: {name: wp-1, namespace: shop, uid: wu1, labels: {gateway.networking.k8s.io/gateway-name: wp}}
spec: {nodeName: n1, serviceAccountName: wp, containers: []}
status: {phase: Running, podIPs: [{ip: 10.0.0.3}], conditions: [{type: Ready, status: "True"}]}
"#;

fn waypoint_node() -> Node {
    let fields = [("NAMESPACE".to_owned(), text("shop"))].into();
    Node {
        id: "waypoint~10.0.0.3~wp-1.shop~shop.svc.cluster.local".to_owned(),
        metadata: Some(Struct { fields }),
        ..Node::default()
    }
}

#[tokio::test]
async fn waypoint_gets_its_records_and_certificate_while_its_pod_lives() {
    let plane = ControlPlane::start_with(&format!("{MANIFESTS}---{WAYPOINT}"), &[]).await;
    let token = plane.token_of("shop", "wp", "wp-1", "wu1");
    let mut stream = plane.stream_as(&token).await.unwrap();
    let request = |url: &str| DeltaDiscoveryRequest {
        node: Some(waypoint_node()),
        type_url: url.to_owned(),
        ..DeltaDiscoveryRequest::default()
    };
    let mut names = Vec::new();
    for url in [
        WaypointGateway::TYPE_URL,
        WaypointService::TYPE_URL,
        ADDRESS_TYPE_URL,
    ] {
        stream.send(request(url)).await;
        let response = stream.next().await.unwrap();
        names.extend(response.resources.into_iter().map(|one| one.name));
    }
    assert_eq!(
        names,
        ["shop/wp", "shop/wp/shop/api.shop.svc.cluster.local"]
    );
    let page = plane.page("/debug/waypointz").await;
    let (_, body) = page.split_once("\r\n\r\n").unwrap();
    let page: serde_json::Value = serde_json::from_str(body).unwrap();
    let records = &page["waypoints"]["shop/wp"];
    assert_eq!(
        records["gateway"][""]["record"]["gateway"], "shop/wp",
        "{page}"
    );
    let service = &records["services"]["shop/api.shop.svc.cluster.local"];
    assert!(
        service["version"].is_string() && service["record"]["routes"].is_array(),
        "{page}"
    );

    let own = "spiffe://cluster.local/ns/shop/sa/wp".parse().unwrap();
    let csr = CertificateRequest::new(&own).unwrap().pem;
    let chain = plane.certificate(&token, &csr, None, 0).await;
    assert!(chain.is_ok(), "{chain:?}");
    let other = "spiffe://cluster.local/ns/shop/sa/web";
    let refused = plane.certificate(&token, &csr, Some(other), 0).await;
    assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated);
    let gone = plane.token_of("shop", "wp", "wp-0", "wu0");
    let refused = plane.certificate(&gone, &csr, None, 0).await;
    assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated);

    // Another account of the namespace is not a waypoint.
    let stranger = plane.token_of("shop", "web", "web-1", "u1");
    let refused = plane.stream_as(&stranger).await.err().unwrap();
    assert_eq!(refused.code(), Code::PermissionDenied);

    plane.write("objects.yaml", MANIFESTS);
    let ended = loop {
        match stream.next().await {
            Ok(_) => {}
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), Code::PermissionDenied);
    assert!(plane.stream_as(&token).await.is_err());
}
