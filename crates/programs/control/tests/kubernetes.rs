//! Tests of the control plane with an API server in memory.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

use std::{path::PathBuf, time::Duration};

use ambit_certificates::CertificateRequest;
use ambit_control::{
    args::Args,
    run::{self, RunningControlPlane},
};
use ambit_control_channel::{ChannelConfig, RootCa};
use ambit_model::Identity;
use ambit_testkit::ApiServer;
use ambit_tls::TlsSettings;
use ambit_wire::citadel::{
    IstioCertificateRequest, istio_certificate_service_client::IstioCertificateServiceClient,
};
use clap::Parser;
use prost_types::{Struct, value::Kind};
use serde_json::{Value, json};
use tonic::{Code, Request, Status};

#[path = "kubernetes/revisions.rs"]
mod revisions;
#[path = "kubernetes/trust_domains.rs"]
mod trust_domains;

const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

const NAMESPACES: &str = "/api/v1/namespaces";
const NODES: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/pods";
const SERVICES: &str = "/api/v1/services";
const CONFIG_MAPS: &str = "/api/v1/configmaps";
const SECRETS: &str = "/api/v1/secrets";
const ENDPOINT_SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
const POLICIES: &str = "/apis/security.istio.io/v1/authorizationpolicies";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const AUTHORIZATION_POLICY_CRD: &str = "authorizationpolicies.security.istio.io";
const SERVICE_ENTRIES: &str = "/apis/networking.istio.io/v1/serviceentries";
const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

struct Cluster {
    server: ApiServer,
    dir: tempfile::TempDir,
}

impl Cluster {
    /// Starts a cluster with the namespaces `istio-system` and `shop`.
    fn start() -> Self {
        let cluster = Self {
            server: ApiServer::start(),
            dir: tempfile::tempdir().unwrap(),
        };
        cluster.put_namespace("istio-system");
        cluster.put_namespace("shop");
        cluster
    }

    fn put_namespace(&self, name: &str) {
        self.server.put(
            NAMESPACES,
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
        );
    }

    fn put_pod(&self, namespace: &str, name: &str, account: &str, ip: &str) {
        self.server.put(
            PODS,
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": name, "namespace": namespace, "uid": format!("uid-{name}"),
                    "labels": {"app": account, "istio.io/dataplane-mode": "ambient"}},
                "spec": {"nodeName": "n1", "serviceAccountName": account, "containers": [{"name": "c"}]},
                "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
                    "conditions": [{"type": "Ready", "status": "True"}]},
            }),
        );
    }

    fn put_policy(&self, name: &str, spec: Value) {
        self.server.put(
            POLICIES,
            json!({"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
                "metadata": {"name": name, "namespace": "shop", "generation": 1}, "spec": spec}),
        );
    }

    async fn start_replica(&self, name: &str) -> Replica {
        self.start_replica_with(name, &[]).await
    }

    async fn start_replica_with(&self, name: &str, more: &[&str]) -> Replica {
        let path = |file: &str| self.dir.path().join(file);
        let kubeconfig = path("kubeconfig");
        std::fs::write(&kubeconfig, self.server.kubeconfig()).unwrap();
        let root = path(&format!("{name}.pem"));
        let args = [
            "ambit-control",
            "--kubeconfig",
            kubeconfig.to_str().unwrap(),
            "--name",
            name,
            "--listen-xds",
            "127.0.0.1:0",
            "--listen-monitoring",
            "127.0.0.1:0",
            "--listen-http",
            "127.0.0.1:0",
            "--root-cert-out",
            root.to_str().unwrap(),
        ];
        let args = args.iter().chain(more);
        let running = run::start(&Args::parse_from(args)).await.unwrap();
        Replica {
            running,
            root_path: root,
        }
    }

    fn root_config_map(&self, namespace: &str) -> Option<String> {
        let map = self
            .server
            .get(CONFIG_MAPS, namespace, "istio-ca-root-cert")?;
        map["data"]["root-cert.pem"].as_str().map(str::to_owned)
    }

    /// Returns the status condition of a policy, as text.
    fn policy_condition(&self, name: &str) -> Option<String> {
        let policy = self.server.get(POLICIES, "shop", name)?;
        let one = &policy["status"]["conditions"][0];
        let text = |field: &str| one[field].as_str().map(str::to_owned);
        Some(format!(
            "{}={} {}",
            text("type")?,
            text("status")?,
            text("reason")?
        ))
    }
}

struct Replica {
    running: RunningControlPlane,
    root_path: PathBuf,
}

impl Replica {
    fn read_root(&self) -> String {
        std::fs::read_to_string(&self.root_path).unwrap()
    }

    /// Waits until the objects of the cluster are known.
    async fn wait_until_ready(&self) {
        let begin = std::time::Instant::now();
        while !self.page("/ready").await.starts_with("HTTP/1.1 200") {
            assert!(begin.elapsed() < WAIT_TIMEOUT, "never ready");
            tokio::task::yield_now().await;
        }
    }

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

    /// Returns the names of the published records, sorted.
    async fn record_names(&self) -> Vec<String> {
        let page = self.page("/debug/ambientz").await;
        let (_, body) = page.split_once("\r\n\r\n").unwrap();
        let records: Value = serde_json::from_str(body).unwrap();
        let mut names = Vec::new();
        for (kind, name) in [
            ("workloads", "uid"),
            ("services", "hostname"),
            ("policies", "name"),
        ] {
            for record in records[kind].as_array().unwrap() {
                names.push(record[name].as_str().unwrap().to_owned());
            }
        }
        names.sort();
        names
    }

    async fn wait_for_records(&self, expected: &[&str]) {
        let mut expected: Vec<_> = expected.iter().map(ToString::to_string).collect();
        expected.sort();
        let begin = std::time::Instant::now();
        loop {
            let records = self.record_names().await;
            if records == expected {
                return;
            }
            assert!(
                begin.elapsed() < WAIT_TIMEOUT,
                "{records:?}, not {expected:?}"
            );
            tokio::task::yield_now().await;
        }
    }

    async fn certificate(&self, token: &str, account: &str) -> Result<Vec<String>, Status> {
        let identity = Identity::new("cluster.local", "shop", account.to_owned());
        let value = prost_types::Value {
            kind: Some(Kind::StringValue(identity.to_string())),
        };
        let mut call = Request::new(IstioCertificateRequest {
            csr: CertificateRequest::new(&identity).unwrap().pem,
            validity_duration: 600,
            metadata: Some(Struct {
                fields: [("ImpersonatedIdentity".to_owned(), value)].into(),
            }),
        });
        call.metadata_mut()
            .insert("authorization", format!("Bearer {token}").parse().unwrap());
        let channel = ambit_control_channel::create_channel(&ChannelConfig {
            address: format!("https://localhost:{}", self.running.xds_address.port()),
            roots: RootCa::from_setting(&self.read_root()),
            alternative_name: None,
            tls: TlsSettings::default(),
        })
        .unwrap();
        let answer = IstioCertificateServiceClient::new(channel)
            .create_certificate(call)
            .await?;
        Ok(answer.into_inner().cert_chain)
    }
}

/// Repeats `look` until it returns a result; panics with `what` at a timeout.
async fn wait_for_value<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = std::time::Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(begin.elapsed() < WAIT_TIMEOUT, "never: {what}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn records_follow_objects_through_an_outage() {
    let cluster = Cluster::start();
    cluster.put_pod("shop", "web-1", "web", "10.0.0.1");
    cluster.server.put(
        SERVICES,
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"clusterIP": "10.96.0.1", "selector": {"app": "web"}, "ports": [{"port": 80}]}}),
    );
    let slice = |name: &str, by: &str, ip: &str| {
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": name, "namespace": "shop", "labels": {
                "kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": by}},
            "endpoints": [{"addresses": [ip]}], "ports": [{"port": 8080}]})
    };
    // Pods that Kubernetes derived from a selector are not selected again.
    let derived = slice("web-a", "endpointslice-controller.k8s.io", "192.0.2.1");
    cluster.server.put(ENDPOINT_SLICES, derived);
    cluster
        .server
        .put(ENDPOINT_SLICES, slice("web-b", "me", "192.0.2.2"));
    let replica = cluster.start_replica("a").await;
    let host = "web.shop.svc.cluster.local";
    let by_hand = "Kubernetes/discovery.k8s.io/EndpointSlice/shop/web-b/192.0.2.2";
    let pod = |name: &str| format!("Kubernetes//Pod/shop/{name}");
    replica
        .wait_for_records(&[host, by_hand, &pod("web-1")])
        .await;
    let ready = replica.page("/ready").await;
    assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
    cluster.put_pod("shop", "web-2", "web", "10.0.0.2");
    replica
        .wait_for_records(&[host, by_hand, &pod("web-1"), &pod("web-2")])
        .await;
    cluster.server.set_unavailable(true);
    cluster.server.delete(PODS, "shop", "web-1");
    cluster.server.delete(ENDPOINT_SLICES, "shop", "web-b");
    cluster.put_pod("shop", "web-3", "web", "10.0.0.3");
    cluster.server.compact();
    cluster.server.set_unavailable(false);
    replica
        .wait_for_records(&[host, &pod("web-2"), &pod("web-3")])
        .await;
    replica.running.stop().await;
}

#[tokio::test]
async fn kinds_are_followed_once_their_crd_exists() {
    let cluster = Cluster::start();
    let replica = cluster.start_replica("a").await;
    replica.wait_for_records(&[]).await;
    cluster.server.serve(POLICIES, "AuthorizationPolicy");
    cluster.server.put(
        CRDS,
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": AUTHORIZATION_POLICY_CRD},
            "spec": {"versions": [{"name": "v1", "served": true}]}}),
    );
    cluster.put_policy("p", json!({"rules": [{}]}));
    replica.wait_for_records(&["p"]).await;
    wait_for_value("the policy's condition", || {
        cluster
            .policy_condition("p")
            .filter(|text| text == "ZtunnelAccepted=True Accepted")
    })
    .await;
    // The page of objects omits kinds without a CRD.
    let page = replica.page("/debug/configz").await;
    let (_, objects) = page.split_once("\r\n\r\n").unwrap();
    let objects: Vec<Value> = serde_json::from_str(objects).unwrap();
    let names: Vec<_> = objects
        .iter()
        .map(|object| {
            (
                &object["kind"],
                &object["metadata"]["name"],
                &object["spec"],
            )
        })
        .collect();
    let spec = json!({"rules": [{}]});
    assert_eq!(names, [(&json!("AuthorizationPolicy"), &json!("p"), &spec)]);
    cluster.server.delete(POLICIES, "shop", "p");
    replica.wait_for_records(&[]).await;
    replica.running.stop().await;
}

#[tokio::test]
async fn invalid_initial_policy_denies_until_corrected() {
    let cluster = Cluster::start();
    cluster.put_policy(
        "p",
        json!({"selector": {"matchLabels": {"app": "web"}}, "rulez": [{}]}),
    );
    cluster.put_pod("shop", "web-1", "web", "10.0.0.1");
    let replica = cluster.start_replica("a").await;
    replica
        .wait_for_records(&["Kubernetes//Pod/shop/web-1", "p"])
        .await;
    let records = replica.page("/debug/ambientz").await;
    assert!(records.contains("Deny"), "{records}");
    let condition = |expected: &'static str| {
        let cluster = &cluster;
        wait_for_value(expected, move || {
            cluster
                .policy_condition("p")
                .filter(|text| text == expected)
        })
    };
    condition("ZtunnelAccepted=False Outdated").await;
    cluster.put_policy("p", json!({"rules": [{}]}));
    condition("ZtunnelAccepted=True Accepted").await;
    let begin = std::time::Instant::now();
    while replica.page("/debug/ambientz").await.contains("Deny") {
        assert!(begin.elapsed() < WAIT_TIMEOUT, "it still refuses");
    }
    // A policy that becomes invalid later keeps its last valid version.
    cluster.put_policy("p", json!({"rulez": [{}]}));
    condition("ZtunnelAccepted=False Outdated").await;
    let records = replica.page("/debug/ambientz").await;
    assert!(!records.contains("Deny"), "{records}");
    replica.running.stop().await;
}

/// Returns a token of the node proxy's account in Kubernetes' format; the signature selects the simulated review.
fn token(signature: &str) -> String {
    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
    let part = |value: Value| BASE64.encode(value.to_string());
    let claims = json!({
        "iss": "https://kubernetes.default.svc", "aud": ["istio-ca"], "exp": 4_000_000_000_u64,
        "sub": "system:serviceaccount:istio-system:ztunnel",
    });
    let header = json!({"alg": "RS256", "kid": "k"});
    format!(
        "{}.{}.{}",
        part(header),
        part(claims),
        BASE64.encode(signature)
    )
}

/// Makes the API server accept `token("good")` as the node proxy's, and nothing else.
fn review_tokens(server: &ApiServer) {
    server.set_review_handler(TOKEN_REVIEWS, |review| {
        let good = review["spec"]["token"] == token("good")
            && review["spec"]["audiences"] == json!(["istio-ca"]);
        let status = if good {
            json!({"authenticated": true, "audiences": ["istio-ca"], "user": {
                "username": "system:serviceaccount:istio-system:ztunnel",
                "groups": ["system:serviceaccounts"],
                "extra": {"authentication.kubernetes.io/pod-name": ["zt-1"],
                    "authentication.kubernetes.io/pod-uid": ["uid-zt-1"]}}})
        } else {
            json!({"authenticated": false, "error": "no such token"})
        };
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {},
            "spec": review["spec"], "status": status})
    });
}

/// Returns the tokens that the API server reviewed.
fn reviewed_tokens(server: &ApiServer) -> Vec<String> {
    let requests = server.requests().into_iter();
    requests
        .filter(|request| request.path.starts_with(TOKEN_REVIEWS))
        .filter_map(|request| request.body["spec"]["token"].as_str().map(str::to_owned))
        .collect()
}

#[tokio::test]
async fn token_reviews_are_cached_briefly() {
    let cluster = Cluster::start();
    cluster.put_pod("istio-system", "zt-1", "ztunnel", "10.0.0.9");
    cluster.put_pod("shop", "web-1", "web", "10.0.0.1");
    review_tokens(&cluster.server);
    let [good, bad] = ["good", "bad"].map(token);
    let replica = cluster.start_replica("a").await;
    replica.wait_until_ready().await;
    let issued = replica.certificate(&good, "web").await.unwrap();
    assert_eq!(issued.last(), Some(&replica.read_root()));
    let elsewhere = replica.certificate(&good, "other").await.unwrap_err();
    assert_eq!(elsewhere.code(), Code::Unauthenticated);
    for _ in 0..5 {
        let refused = replica.certificate(&bad, "web").await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
    }
    assert_eq!(reviewed_tokens(&cluster.server), [good.clone(), bad]);
    cluster.server.set_unavailable(true);
    // A connection that is about to be closed may still respond.
    let mut outcomes = Vec::new();
    for number in 0..10 {
        let unknown = token(&format!("new {number}"));
        let unknown = replica.certificate(&unknown, "web").await.unwrap_err();
        outcomes.push(unknown.code());
    }
    assert_eq!(outcomes.last(), Some(&Code::Unavailable), "nobody can say");
    assert!(replica.certificate(&good, "web").await.is_ok());
    replica.running.stop().await;
}

#[tokio::test]
async fn forged_tokens_cause_few_reviews() {
    let cluster = Cluster::start();
    cluster.put_pod("istio-system", "zt-1", "ztunnel", "10.0.0.9");
    cluster.put_pod("shop", "web-1", "web", "10.0.0.1");
    review_tokens(&cluster.server);
    let replica = cluster.start_replica("a").await;
    replica.wait_until_ready().await;
    replica.certificate(&token("good"), "web").await.unwrap();
    // Malformed tokens cost no review.
    for text in ["x", "a.b.c", "e30.e30.e30"] {
        let refused = replica.certificate(text, "web").await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
    }
    assert_eq!(reviewed_tokens(&cluster.server), [token("good")]);
    // A well-formed token is reviewed until its address has used up its share.
    let begin = std::time::Instant::now();
    for number in 0..60 {
        let made_up = token(&format!("made up {number}"));
        assert!(replica.certificate(&made_up, "web").await.is_err());
    }
    let share = 22.0 + 2.0 * begin.elapsed().as_secs_f64();
    let asked = reviewed_tokens(&cluster.server).len();
    assert!(
        f64::from(u32::try_from(asked).unwrap()) <= share,
        "{asked} of 60 made up tokens were reviewed, in a time for {share}"
    );
    // An accepted token still works from the same address.
    replica.wait_until_ready().await;
    replica.certificate(&token("good"), "web").await.unwrap();
    let metrics = replica.page("/metrics").await;
    assert!(
        metrics.contains("ambit_calls_authenticated{outcome=\"refused\"}"),
        "{metrics}"
    );
    replica.running.stop().await;
}

#[tokio::test]
async fn replicas_share_one_root_and_the_leader_distributes_it() {
    let cluster = Cluster::start();
    cluster.put_namespace("kube-public");
    let (first, second) = tokio::join!(cluster.start_replica("a"), cluster.start_replica("b"));
    let root = first.read_root();
    assert_eq!(root, second.read_root());
    let copied = |namespace: &'static str| {
        let (cluster, root) = (&cluster, &root);
        wait_for_value(namespace, move || {
            cluster
                .root_config_map(namespace)
                .filter(|copy| copy == root)
        })
    };
    for namespace in ["istio-system", "shop"] {
        copied(namespace).await;
    }
    assert_eq!(cluster.root_config_map("kube-public"), None);
    cluster
        .server
        .delete(CONFIG_MAPS, "shop", "istio-ca-root-cert");
    copied("shop").await;
    let mut edited = cluster
        .server
        .get(CONFIG_MAPS, "shop", "istio-ca-root-cert")
        .unwrap();
    edited["data"]["root-cert.pem"] = json!("edited");
    cluster.server.put(CONFIG_MAPS, edited);
    copied("shop").await;
    let secret = |cluster: &Cluster| {
        cluster
            .server
            .get(SECRETS, "istio-system", "istio-ca-secret")
    };
    let before = secret(&cluster).unwrap();
    assert_eq!(before["type"], "istio.io/ca-root");
    cluster
        .server
        .delete(SECRETS, "istio-system", "istio-ca-secret");
    let after = wait_for_value("the secret", || secret(&cluster)).await;
    assert_eq!(before["data"], after["data"], "nothing issued becomes void");
    // The leader ends; the other replica takes over at once.
    first.running.stop().await;
    cluster.put_namespace("new");
    copied("new").await;
    second.running.stop().await;
}

#[tokio::test]
async fn never_valid_policy_denies_all_in_every_replica() {
    let cluster = Cluster::start();
    cluster.put_policy("good", json!({"rules": [{}]}));
    let first = cluster.start_replica("a").await;
    first.wait_for_records(&["good"]).await;
    cluster.put_policy("bad", json!({"rulez": [{}]}));
    first.wait_for_records(&["bad", "good"]).await;
    let condition = wait_for_value("its condition", || cluster.policy_condition("bad")).await;
    assert_eq!(condition, "ZtunnelAccepted=False Outdated");
    let second = cluster.start_replica("b").await;
    second.wait_for_records(&["bad", "good"]).await;
    let records = second.page("/debug/ambientz").await;
    assert!(records.contains("Deny"), "{records}");
    first.running.stop().await;
    second.running.stop().await;
}

/// Returns the number of requests for the CRD of policies.
fn count_definition_reads(cluster: &Cluster) -> usize {
    let place = format!("{CRDS}/{AUTHORIZATION_POLICY_CRD}");
    let requests = cluster.server.requests().into_iter();
    requests
        .filter(|request| request.path.starts_with(&place))
        .count()
}

#[tokio::test]
async fn policies_are_removed_only_after_two_missing_crd_responses() {
    let cluster = Cluster::start();
    cluster.put_policy("p", json!({"rules": [{}]}));
    let replica = cluster.start_replica("a").await;
    replica.wait_for_records(&["p"]).await;
    // Incomplete responses: to the list of kinds, to the list of objects, and once to the request
    // for the CRD.
    let incomplete = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": []});
    cluster.server.set_fixed_response("/apis", incomplete);
    let definition = format!("{CRDS}/{AUTHORIZATION_POLICY_CRD}");
    cluster.server.fail_next_at(&definition, &[404]);
    let before = count_definition_reads(&cluster);
    cluster.server.fail_next_at(POLICIES, &[404, 404]);
    cluster.server.compact();
    cluster.server.close_connections();
    wait_for_value("two looks", || {
        (count_definition_reads(&cluster) >= before + 2).then_some(())
    })
    .await;
    cluster.put_policy("q", json!({"rules": [{}]}));
    replica.wait_for_records(&["p", "q"]).await;
    // The CRD is deleted: so are its objects.
    for name in ["p", "q"] {
        cluster.server.delete(POLICIES, "shop", name);
    }
    replica.wait_for_records(&[]).await;
    replica.running.stop().await;
}

#[tokio::test]
async fn replica_does_not_start_without_policies_after_one_404() {
    let cluster = Cluster::start();
    cluster.put_policy("p", json!({"rules": [{}]}));
    let definition = format!("{CRDS}/{AUTHORIZATION_POLICY_CRD}");
    cluster.server.fail_next_at(&definition, &[404]);
    let incomplete = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": []});
    cluster.server.set_fixed_response("/apis", incomplete);
    let replica = cluster.start_replica("a").await;
    replica.wait_until_ready().await;
    assert_eq!(replica.record_names().await, ["p"]);
    replica.running.stop().await;
}

#[tokio::test]
async fn entries_keep_their_addresses_and_lose_duplicates() {
    let cluster = Cluster::start();
    let entry = |name: &str, spec: Value| {
        let mut entry = json!({"apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry",
            "metadata": {"name": name, "namespace": "shop", "generation": 1}});
        entry["spec"] = json!({"resolution": "DNS", "ports": [{"number": 80, "name": "http"}]});
        for (field, value) in spec.as_object().unwrap() {
            entry["spec"][field] = value.clone();
        }
        cluster.server.put(SERVICE_ENTRIES, entry);
    };
    let addresses = |name: &'static str| {
        let entry = cluster.server.get(SERVICE_ENTRIES, "shop", name)?;
        let all = entry["status"]["addresses"].as_array()?.iter();
        let all = all.map(|one| one["value"].as_str().unwrap().to_owned());
        Some(all.collect::<Vec<_>>())
    };
    entry("a", json!({"hosts": ["a.example.com"]}));
    let first = cluster.start_replica("a").await;
    let of_a = wait_for_value("addresses", || addresses("a")).await;
    assert_eq!(of_a, ["240.240.0.1", "2001:2::1"]);
    let published = |page: String| page.contains("240.240.0.1");
    let begin = std::time::Instant::now();
    while !published(first.page("/debug/ambientz").await) {
        assert!(begin.elapsed() < WAIT_TIMEOUT, "never published");
        tokio::task::yield_now().await;
    }
    first.running.stop().await;
    let second = cluster.start_replica("b").await;
    entry("b", json!({"hosts": ["b.example.com"]}));
    let of_b = wait_for_value("addresses", || addresses("b")).await;
    assert_eq!(of_b, ["240.240.0.2", "2001:2::2"]);
    assert_eq!(addresses("a").unwrap(), of_a);
    // Address that another, younger object has, too.
    entry(
        "c",
        json!({"hosts": ["c.example.com"], "addresses": ["10.0.0.7"]}),
    );
    cluster.put_pod("istio-system", "victim", "victim", "10.0.0.7");
    let condition = || {
        let entry = cluster.server.get(SERVICE_ENTRIES, "shop", "c")?;
        let one = &entry["status"]["conditions"][0];
        Some((
            one["reason"].as_str()?.to_owned(),
            one["message"].to_string(),
        ))
    };
    let (reason, message) = wait_for_value("its condition", condition).await;
    assert_eq!(reason, "PartlyUsed");
    assert!(message.contains("Pod istio-system/victim"), "{message}");
    second.running.stop().await;
}

/// Creates a mesh pod on a node, as a DaemonSet does.
fn put_mesh_pod(cluster: &Cluster, name: &str, label: (&str, &str), node: &str, ready: bool) {
    let ready = if ready { "True" } else { "False" };
    cluster.server.put(
        PODS,
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "istio-system", "uid": format!("uid-{name}"),
                "labels": {label.0: label.1}},
            "spec": {"nodeName": node, "serviceAccountName": label.1, "containers": [{"name": "c"}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
        }),
    );
}

fn taints(cluster: &Cluster, node: &str) -> Value {
    cluster.server.get(NODES, "", node).unwrap()["spec"]["taints"].clone()
}

const AGENT: (&str, &str) = ("k8s-app", "istio-cni-node");
const PROXY: (&str, &str) = ("app", "ztunnel");

#[tokio::test]
async fn startup_taint_is_removed_when_agent_and_proxy_are_ready() {
    let cluster = Cluster::start();
    let other = json!({"key": "dedicated", "value": "gpu", "effect": "NoSchedule"});
    for node in ["n1", "n2"] {
        let taint = json!({"key": "cni.istio.io/not-ready", "effect": "NoSchedule"});
        cluster.server.put(
            NODES,
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node},
                "spec": {"taints": [taint, other]}}),
        );
    }
    let (first, second) = tokio::join!(
        cluster.start_replica_with("a", &["--untaint-nodes"]),
        cluster.start_replica_with("b", &["--untaint-nodes"])
    );
    put_mesh_pod(&cluster, "agent-1", AGENT, "n1", true);
    put_mesh_pod(&cluster, "proxy-1", PROXY, "n1", false);
    put_mesh_pod(&cluster, "agent-2", AGENT, "n2", true);
    put_mesh_pod(&cluster, "proxy-2", PROXY, "n2", true);
    let lost = |node: &'static str| {
        let (cluster, left) = (&cluster, json!([other]));
        wait_for_value("the taint is gone", move || {
            (taints(cluster, node) == left).then_some(())
        })
    };
    lost("n2").await;
    assert_eq!(taints(&cluster, "n1").as_array().unwrap().len(), 2);
    put_mesh_pod(&cluster, "proxy-1", PROXY, "n1", true);
    lost("n1").await;
    first.running.stop().await;
    second.running.stop().await;
}

/// Creates a pod of an agent or node proxy whose only container is in restart back-off, with the exit code of its last
/// run.
fn put_back_off_pod(cluster: &Cluster, name: &str, app: &str, exit_code: i32) {
    cluster.server.put(
        PODS,
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "istio-system", "uid": name, "labels": {"app": app}},
            "spec": {"nodeName": name, "containers": [{"name": "c"}]},
            "status": {"containerStatuses": [{
                "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 2,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": exit_code, "reason": "Error"}},
            }]},
        }),
    );
}

#[tokio::test]
async fn killed_agents_and_proxies_in_back_off_are_replaced() {
    let cluster = Cluster::start();
    put_back_off_pod(&cluster, "failed", "ztunnel", 1);
    put_back_off_pod(&cluster, "foreign", "web", 137);
    put_back_off_pod(&cluster, "proxy", "ztunnel", 137);
    let replica = cluster
        .start_replica_with("a", &["--reset-restart-backoff"])
        .await;
    let deleted = |name: &'static str| {
        let server = &cluster.server;
        wait_for_value("the pod is deleted", move || {
            server
                .get(PODS, "istio-system", name)
                .is_none()
                .then_some(())
        })
    };
    deleted("proxy").await;
    put_back_off_pod(&cluster, "agent", "ambit-agent", 137);
    deleted("agent").await;
    for name in ["failed", "foreign"] {
        assert!(
            cluster.server.get(PODS, "istio-system", name).is_some(),
            "{name}"
        );
    }
    replica.running.stop().await;
}

/// Creates one object of each kind that gets a status.
fn put_one_of_each_kind(cluster: &Cluster) {
    for (collection, kind) in [
        (HTTP_ROUTES, "HTTPRoute"),
        (GRPC_ROUTES, "GRPCRoute"),
        (TLS_ROUTES, "TLSRoute"),
        (TCP_ROUTES, "TCPRoute"),
    ] {
        let spec = json!({"parentRefs": [{"group": "", "kind": "Service", "name": "one"}]});
        put_one(
            cluster,
            (collection, kind, "gateway.networking.k8s.io/v1"),
            &spec,
        );
    }
    for (collection, kind, api, spec) in [
        (
            SERVICES,
            "Service",
            "v1",
            json!({"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}),
        ),
        (
            "/apis/security.istio.io/v1/peerauthentications",
            "PeerAuthentication",
            "security.istio.io/v1",
            json!({"mtls": {"mode": "STRICT"}}),
        ),
        (
            REQUEST_AUTHENTICATIONS,
            "RequestAuthentication",
            "security.istio.io/v1",
            json!({"jwtRules": [{"issuer": "https://i.example", "jwks": "{\"keys\":[]}"}]}),
        ),
        (
            SERVICE_ENTRIES,
            "ServiceEntry",
            "networking.istio.io/v1",
            json!({"hosts": ["a.example"], "addresses": ["240.0.0.1"], "resolution": "STATIC",
                "ports": [{"number": 80, "name": "http"}]}),
        ),
        (
            BACKEND_TLS_POLICIES,
            "BackendTLSPolicy",
            "gateway.networking.k8s.io/v1",
            json!({"targetRefs": [{"group": "", "kind": "Service", "name": "one"}],
                "validation": {"hostname": "a.example", "wellKnownCACertificates": "System"}}),
        ),
        (
            WORKLOAD_ENTRIES,
            "WorkloadEntry",
            "networking.istio.io/v1",
            json!({"address": "192.0.2.1"}),
        ),
        (
            DESTINATION_RULES,
            "DestinationRule",
            "networking.istio.io/v1",
            json!({"host": "one"}),
        ),
        (
            VIRTUAL_SERVICES,
            "VirtualService",
            "networking.istio.io/v1",
            json!({"hosts": ["one"], "http": [{"route": [{"destination": {"host": "one"}}]}]}),
        ),
        (
            WASM_PLUGINS,
            "WasmPlugin",
            "extensions.istio.io/v1alpha1",
            json!({"url": "oci://r.example/one"}),
        ),
        (
            HTTP_FAULTS,
            "HTTPFault",
            "ambit.io/v1alpha1",
            json!({"abort": {"httpStatus": 503}}),
        ),
        (
            RATE_LIMITS,
            "RateLimit",
            "ambit.io/v1alpha1",
            json!({"targetRefs": [{"kind": "Service", "name": "one"}], "local": [{"requests": 1, "per": "1s"}]}),
        ),
        (
            TELEMETRIES,
            "Telemetry",
            "telemetry.istio.io/v1",
            json!({"tracing": [{"randomSamplingPercentage": 1}]}),
        ),
    ] {
        put_one(cluster, (collection, kind, api), &spec);
    }
}

fn put_one(cluster: &Cluster, (collection, kind, api): (&str, &str, &str), spec: &Value) {
    cluster.server.put(
        collection,
        json!({"apiVersion": api, "kind": kind, "spec": spec, "metadata": {
            "name": "one", "namespace": "shop", "generation": 1,
            "labels": {"istio.io/use-waypoint": "nowhere"}}}),
    );
}

/// Creates the CRDs that are optional in a cluster.
fn define_kinds(cluster: &Cluster) {
    cluster.define_crd("networking.istio.io", "destinationrules", "DestinationRule");
    cluster.define_crd("networking.istio.io", "virtualservices", "VirtualService");
    cluster.define_crd_version("ambit.io", "httpfaults", "HTTPFault", "v1alpha1");
    cluster.define_crd_version("ambit.io", "ratelimits", "RateLimit", "v1alpha1");
    cluster.define_crd(
        "security.istio.io",
        "requestauthentications",
        "RequestAuthentication",
    );
    cluster.define_crd("telemetry.istio.io", "telemetries", "Telemetry");
    cluster.define_crd_version(
        "extensions.istio.io",
        "wasmplugins",
        "WasmPlugin",
        "v1alpha1",
    );
}

/// Waits until one object of each kind has its status.
async fn wait_for_statuses(cluster: &Cluster) {
    for collection in KINDS_WITH_CONDITIONS {
        wait_for_value(collection, || {
            let object = cluster.server.get(collection, "shop", "one")?;
            object["status"]["conditions"].as_array().map(drop)
        })
        .await;
    }
    for routes in [HTTP_ROUTES, GRPC_ROUTES, TLS_ROUTES, TCP_ROUTES] {
        wait_for_value(routes, || {
            let route = cluster.server.get(routes, "shop", "one")?;
            route["status"]["parents"].as_array().map(drop)
        })
        .await;
    }
    wait_for_value(BACKEND_TLS_POLICIES, || {
        let policy = cluster.server.get(BACKEND_TLS_POLICIES, "shop", "one")?;
        policy["status"]["ancestors"].as_array().map(drop)
    })
    .await;
}

/// Checks that the chart's roles grant exactly the permissions that the control plane uses.
#[tokio::test]
async fn chart_roles_grant_exactly_the_used_permissions() {
    let cluster = Cluster::with_gateways();
    cluster.put_scaled_gateway("way");
    cluster.put_pod("istio-system", "zt-1", "ztunnel", "10.0.0.9");
    cluster.put_pod("shop", "web-1", "web", "10.0.0.1");
    put_mesh_pod(&cluster, "agent-1", AGENT, "n1", true);
    put_mesh_pod(&cluster, "proxy-1", PROXY, "n1", true);
    cluster.server.put(
        NODES,
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
            "spec": {"taints": [{"key": "cni.istio.io/not-ready", "effect": "NoSchedule"}]}}),
    );
    cluster.put_policy("bad", json!({"rulez": [{}]}));
    define_kinds(&cluster);
    put_one_of_each_kind(&cluster);
    let others =
        READ_ONLY_KINDS.map(|(group, plural, kind)| cluster.define_crd(group, plural, kind));
    review_tokens(&cluster.server);
    put_back_off_pod(&cluster, "killed", "ztunnel", 137);
    let flags = [
        "--untaint-nodes",
        "--reset-restart-backoff",
        "--image-pull-secrets",
        "--waypoints",
        r#"{"image": "w:1"}"#,
    ];
    let replica = cluster.start_replica_with("a", &flags).await;
    replica.wait_until_ready().await;
    replica.certificate(&token("good"), "web").await.unwrap();
    wait_for_value("the roots", || cluster.root_config_map("shop")).await;
    wait_for_value("the policy's condition", || cluster.policy_condition("bad")).await;
    wait_for_statuses(&cluster).await;
    wait_for_value("the class is accepted", || {
        let class = cluster.server.get(GATEWAY_CLASSES, "", "istio-waypoint")?;
        class["status"]["conditions"].as_array().map(drop)
    })
    .await;
    wait_for_value("the Gateway's conditions", || {
        cluster.programmed_condition("way")
    })
    .await;
    for collection in [
        DEPLOYMENTS,
        AUTOSCALERS,
        SERVICE_ACCOUNTS,
        DISRUPTION_BUDGETS,
        CONFIG_MAPS,
    ] {
        wait_until_followed(&cluster, collection).await;
    }
    wait_for_value("the autoscaler", || {
        cluster.server.get(AUTOSCALERS, "shop", "way")
    })
    .await;
    for collection in others.iter().map(String::as_str).chain([SECRETS]) {
        wait_until_followed(&cluster, collection).await;
    }
    wait_for_value("no taint", || {
        (taints(&cluster, "n1") == json!([])).then_some(())
    })
    .await;
    wait_for_value("the killed proxy is replaced", || {
        let pod = cluster.server.get(PODS, "istio-system", "killed");
        pod.is_none().then_some(())
    })
    .await;
    cluster
        .server
        .delete(SECRETS, "istio-system", "istio-ca-secret");
    wait_for_value("the secret", || {
        let server = &cluster.server;
        server.get(SECRETS, "istio-system", "istio-ca-secret")
    })
    .await;
    replica.running.stop().await;
    let mut overrides = ambit_install::values::ValueOverrides::default();
    for setting in ["pilot.taint.enabled=true", "pilot.imagePullSecrets=true"] {
        overrides.set(setting, false).unwrap();
    }
    let values = overrides.with_defaults().unwrap();
    let chart = ambit_install::render::render_objects(&Default::default(), &values).unwrap();
    let requests = cluster.server.requests();
    let difference = ambit_testkit::roles::compare(&requests, &chart, "ambit-control");
    let mut surplus = difference.unused;
    surplus.retain(|grant| !UNUSED_PERMISSIONS.contains(&grant.as_str()));
    assert_eq!((difference.missing, surplus), Default::default());
}

/// Checks that only labelled Secrets are read, and only if `--image-pull-secrets` enables it.
#[tokio::test]
async fn secrets_are_watched_by_label_if_configured() {
    let cluster = Cluster::with_gateways();
    let plugins = ("extensions.istio.io", "wasmplugins", "WasmPlugin");
    cluster.define_crd_version(plugins.0, plugins.1, plugins.2, "v1alpha1");
    cluster.put_gateway("way");
    let target = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "way"});
    put_one(
        &cluster,
        (WASM_PLUGINS, "WasmPlugin", "extensions.istio.io/v1alpha1"),
        &json!({"targetRefs": [target], "url": "oci://r.example/one", "imagePullSecret": "creds"}),
    );
    let stands = async |expected: &str| {
        wait_for_value(expected, || {
            let plugin = cluster.server.get(WASM_PLUGINS, "shop", "one")?;
            let conditions = plugin["status"]["conditions"].as_array()?;
            let is_it = |one: &&Value| one["type"] == "WaypointAccepted";
            let one = conditions.iter().find(is_it)?;
            let text = format!("{} {} {}", one["status"], one["reason"], one["message"]);
            text.contains(expected).then_some(())
        })
        .await;
    };
    let asked = || {
        let requests = cluster.server.requests().into_iter();
        let paths = requests.map(|request| request.path);
        paths
            .filter(|path| path.starts_with(SECRETS))
            .collect::<Vec<_>>()
    };
    let flags = ["--waypoints", r#"{"image": "w:1"}"#];
    let without = cluster.start_replica_with("a", &flags).await;
    stands("pilot.imagePullSecrets").await;
    assert_eq!(asked(), [""; 0]);
    without.running.stop().await;
    let flags = [&["--image-pull-secrets"], &flags[..]].concat();
    let with = cluster.start_replica_with("b", &flags).await;
    stands("NoPullSecret").await;
    let put = |labels: Value| {
        let content = json!({".dockerconfigjson": "eyJhdXRocyI6IHt9fQ=="});
        let metadata = json!({"name": "creds", "namespace": "shop", "labels": labels});
        cluster.server.put(
            SECRETS,
            json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
                "metadata": metadata, "data": content}),
        );
    };
    put(json!({"app": "other"}));
    put(json!({"ambit.io/image-pull": "true"}));
    stands("\"True\" \"Accepted\"").await;
    cluster.server.delete(SECRETS, "shop", "creds");
    stands("NoPullSecret").await;
    with.running.stop().await;
    let selects = |path: &String| path.contains("labelSelector=ambit.io%2Fimage-pull%3Dtrue");
    assert!(asked().iter().all(selects), "{:?}", asked());
}

/// Waits until a collection is watched, which begins only after its initial list.
async fn wait_until_followed(cluster: &Cluster, collection: &str) {
    wait_for_value("it is followed", || {
        let requests = cluster.server.requests();
        let follows = |path: &str| path.starts_with(collection) && path.contains("watch=true");
        let mut paths = requests.iter().map(|request| request.path.as_str());
        paths.any(follows).then_some(())
    })
    .await;
}

/// Permissions of the chart's roles that this scenario does not use: deletion of a CRL or a CRD, renewal of the root,
/// repeated events, a Gateway's change of class, flow events (`flows.rs`).
const UNUSED_PERMISSIONS: [&str; 10] = [
    "create authorization.k8s.io/subjectaccessreviews",
    "delete core/configmaps istio-ca-root-cert,istio-ca-crl,ambit-trust-domains",
    "get apiextensions.k8s.io/customresourcedefinitions",
    "update core/secrets istio-ca-secret",
    "patch events.k8s.io/events",
    "delete core/serviceaccounts",
    "delete core/services",
    "delete apps/deployments",
    "delete autoscaling/horizontalpodautoscalers",
    "delete policy/poddisruptionbudgets",
];

/// Kinds whose objects the control plane only reads.
const READ_ONLY_KINDS: [(&str, &str, &str); 2] = [
    (
        "gateway.networking.k8s.io",
        "referencegrants",
        "ReferenceGrant",
    ),
    ("networking.istio.io", "envoyfilters", "EnvoyFilter"),
];

/// Collections of objects whose status has conditions that the control plane writes.
const KINDS_WITH_CONDITIONS: &[&str] = &[
    SERVICES,
    SERVICE_ENTRIES,
    WORKLOAD_ENTRIES,
    DESTINATION_RULES,
    VIRTUAL_SERVICES,
    HTTP_FAULTS,
    RATE_LIMITS,
    REQUEST_AUTHENTICATIONS,
    TELEMETRIES,
    WASM_PLUGINS,
];
const WASM_PLUGINS: &str = "/apis/extensions.istio.io/v1alpha1/wasmplugins";
const WORKLOAD_ENTRIES: &str = "/apis/networking.istio.io/v1/workloadentries";
const REQUEST_AUTHENTICATIONS: &str = "/apis/security.istio.io/v1/requestauthentications";
const DESTINATION_RULES: &str = "/apis/networking.istio.io/v1/destinationrules";
const VIRTUAL_SERVICES: &str = "/apis/networking.istio.io/v1/virtualservices";
const HTTP_FAULTS: &str = "/apis/ambit.io/v1alpha1/httpfaults";
const RATE_LIMITS: &str = "/apis/ambit.io/v1alpha1/ratelimits";
const TELEMETRIES: &str = "/apis/telemetry.istio.io/v1/telemetries";
const HTTP_ROUTES: &str = "/apis/gateway.networking.k8s.io/v1/httproutes";
const GRPC_ROUTES: &str = "/apis/gateway.networking.k8s.io/v1/grpcroutes";
const TLS_ROUTES: &str = "/apis/gateway.networking.k8s.io/v1/tlsroutes";
const BACKEND_TLS_POLICIES: &str = "/apis/gateway.networking.k8s.io/v1/backendtlspolicies";
const TCP_ROUTES: &str = "/apis/gateway.networking.k8s.io/v1/tcproutes";
const GATEWAYS: &str = "/apis/gateway.networking.k8s.io/v1/gateways";
const GATEWAY_CLASSES: &str = "/apis/gateway.networking.k8s.io/v1/gatewayclasses";
const AUTOSCALERS: &str = "/apis/autoscaling/v2/horizontalpodautoscalers";
const DEPLOYMENTS: &str = "/apis/apps/v1/deployments";
const SERVICE_ACCOUNTS: &str = "/api/v1/serviceaccounts";
const DISRUPTION_BUDGETS: &str = "/apis/policy/v1/poddisruptionbudgets";

impl Cluster {
    /// Starts a cluster with the CRDs of the Gateway API.
    fn with_gateways() -> Self {
        let cluster = Self::start();
        for plural in [
            "gateways",
            "gatewayclasses",
            "httproutes",
            "grpcroutes",
            "tcproutes",
            "tlsroutes",
            "backendtlspolicies",
        ] {
            let name = format!("{plural}.gateway.networking.k8s.io");
            let names = json!({"plural": plural, "kind": plural});
            let versions = json!([{"name": "v1", "served": true, "storage": true}]);
            cluster.server.put(
                CRDS,
                json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                    "metadata": {"name": name},
                    "spec": {"group": "gateway.networking.k8s.io", "names": names,
                        "scope": "Namespaced", "versions": versions}}),
            );
        }
        cluster
    }

    /// Creates a CRD, and returns the path of its objects.
    fn define_crd(&self, group: &str, plural: &str, kind: &str) -> String {
        self.define_crd_version(group, plural, kind, "v1")
    }

    fn define_crd_version(&self, group: &str, plural: &str, kind: &str, version: &str) -> String {
        let collection = format!("/apis/{group}/{version}/{plural}");
        self.server.serve(&collection, kind);
        self.server.put(
            CRDS,
            json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": format!("{plural}.{group}")},
                "spec": {"versions": [{"name": version, "served": true}]}}),
        );
        collection
    }

    fn put_gateway(&self, name: &str) {
        self.server.put(
            GATEWAYS,
            json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
                "metadata": {"name": name, "namespace": "shop", "generation": 1},
                "spec": {"gatewayClassName": "istio-waypoint",
                    "listeners": [{"name": "mesh", "port": 15008, "protocol": "HBONE"}]}}),
        );
    }

    /// Creates a Gateway whose overlays, in the ConfigMap `own`, request an autoscaler.
    fn put_scaled_gateway(&self, name: &str) {
        self.put_gateway(name);
        let mut gateway = self.server.get(GATEWAYS, "shop", name).unwrap();
        gateway["spec"]["infrastructure"] =
            json!({"parametersRef": {"group": "", "kind": "ConfigMap", "name": "own"}});
        self.server.put(GATEWAYS, gateway);
        self.put_overlays(
            json!({"horizontalPodAutoscaler": "spec: {minReplicas: 3, maxReplicas: 9}"}),
        );
    }

    fn put_overlays(&self, data: Value) {
        self.server.put(
            CONFIG_MAPS,
            json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "own", "namespace": "shop"}, "data": data}),
        );
    }

    /// Makes our field manager the owner of the waypoint label and of these fields of `spec` of the object `way`.
    fn set_managed_fields(&self, collection: &str, fields: Value) {
        let mut object = self.server.get(collection, "shop", "way").unwrap();
        object["metadata"]["managedFields"] = json!([{
            "manager": "ambit-waypoints", "operation": "Apply", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {"f:labels": {"f:gateway.istio.io/managed": {}}}, "f:spec": fields},
        }]);
        self.server.put(collection, object);
    }

    fn accepted_condition(&self, name: &str) -> Option<(String, String)> {
        let gateway = self.server.get(GATEWAYS, "shop", name)?;
        let conditions = gateway["status"]["conditions"].as_array()?.clone();
        let one = conditions.iter().find(|one| one["type"] == "Accepted")?;
        Some((
            one["reason"].as_str()?.to_owned(),
            one["message"].as_str()?.to_owned(),
        ))
    }

    fn programmed_condition(&self, name: &str) -> Option<String> {
        let gateway = self.server.get(GATEWAYS, "shop", name)?;
        let conditions = gateway["status"]["conditions"].as_array()?.clone();
        let is_it = |one: &&Value| one["type"] == "Programmed";
        let one = conditions.iter().find(is_it)?;
        Some(format!(
            "{} {}",
            one["status"].as_str()?,
            one["reason"].as_str()?
        ))
    }
}

#[tokio::test]
async fn gateway_is_programmed_when_its_waypoint_is_ready() {
    let cluster = Cluster::with_gateways();
    cluster.put_gateway("way");
    let _replica = cluster
        .start_replica_with("one", &["--waypoints", r#"{"image": "w:1"}"#])
        .await;
    let class = wait_for_value("the class", || {
        cluster.server.get(GATEWAY_CLASSES, "", "istio-waypoint")
    })
    .await;
    assert_eq!(class["spec"]["controllerName"], "istio.io/mesh-controller");
    for collection in [SERVICE_ACCOUNTS, SERVICES, DEPLOYMENTS, DISRUPTION_BUDGETS] {
        let made =
            wait_for_value(collection, || cluster.server.get(collection, "shop", "way")).await;
        assert_eq!(made["metadata"]["ownerReferences"][0]["name"], "way");
    }
    let deployment = cluster.server.get(DEPLOYMENTS, "shop", "way").unwrap();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], "w:1");
    wait_for_value("no address yet", || {
        (cluster.programmed_condition("way")? == "False AddressNotAssigned").then_some(())
    })
    .await;
    wait_for_value("the class is accepted", || {
        let class = cluster.server.get(GATEWAY_CLASSES, "", "istio-waypoint")?;
        (class["status"]["conditions"][0]["status"] == "True").then_some(())
    })
    .await;

    // A deleted object is applied again.
    cluster.server.delete(DISRUPTION_BUDGETS, "shop", "way");
    wait_for_value("the budget", || {
        cluster.server.get(DISRUPTION_BUDGETS, "shop", "way")
    })
    .await;

    let mut service = cluster.server.get(SERVICES, "shop", "way").unwrap();
    service["spec"]["clusterIPs"] = json!(["10.96.0.9"]);
    cluster.server.put(SERVICES, service);
    let mut deployment = cluster.server.get(DEPLOYMENTS, "shop", "way").unwrap();
    deployment["status"] = json!({"readyReplicas": 1});
    cluster.server.put(DEPLOYMENTS, deployment);
    wait_for_value("programmed", || {
        (cluster.programmed_condition("way")? == "True Programmed").then_some(())
    })
    .await;
    let gateway = cluster.server.get(GATEWAYS, "shop", "way").unwrap();
    assert_eq!(gateway["status"]["addresses"][0]["value"], "10.96.0.9");
}

/// Checks that a waypoint's readiness is stored on its Gateway, from which the next control plane reads it.
#[tokio::test]
async fn waypoint_readiness_survives_a_restart() {
    let cluster = Cluster::with_gateways();
    cluster.put_gateway("way");
    cluster.server.put(
        NAMESPACES,
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop",
            "labels": {"istio.io/use-waypoint": "way"}}}),
    );
    let waypoint_pod = |ready: &str| {
        cluster.put_pod("shop", "way-1", "way", "10.0.0.9");
        let mut pod = cluster.server.get(PODS, "shop", "way-1").unwrap();
        pod["metadata"]["labels"]["gateway.networking.k8s.io/gateway-name"] = json!("way");
        pod["status"]["conditions"][0]["status"] = json!(ready);
        cluster.server.put(PODS, pod);
    };
    let service = |name: &str| {
        let metadata = json!({"name": name, "namespace": "shop", "generation": 1});
        cluster.server.put(
            SERVICES,
            json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata,
                "spec": {"clusterIP": "None", "selector": {"app": name}, "ports": [{"port": 80}]}}),
        );
    };
    let condition = |collection: &str, name: &str, of: &str| {
        let object = cluster.server.get(collection, "shop", name)?;
        let conditions = object["status"]["conditions"].as_array()?.clone();
        let one = conditions.iter().find(|one| one["type"] == of)?;
        Some(one["reason"].as_str()?.to_owned())
    };
    let bound = |name: &'static str, reason: &'static str| {
        wait_for_value(reason, move || {
            let found = condition(SERVICES, name, "istio.io/WaypointBound")?;
            (found == reason).then_some(())
        })
    };
    let introduced = |reason: &'static str| {
        wait_for_value(reason, move || {
            let found = condition(GATEWAYS, "way", "ambit.io/Introduced")?;
            (found == reason).then_some(())
        })
    };
    service("one");
    waypoint_pod("False");
    let replica = cluster.start_replica("a").await;
    introduced("Waiting").await;
    bound("one", "Waiting").await;
    waypoint_pod("True");
    introduced("Introduced").await;
    bound("one", "WaypointAccepted").await;
    replica.running.stop().await;

    cluster.server.delete(PODS, "shop", "way-1");
    let replica = cluster.start_replica("b").await;
    service("two");
    for name in ["one", "two"] {
        bound(name, "NoReadyWaypoint").await;
    }
    replica.running.stop().await;

    // A Gateway of the same name with another UID.
    cluster.server.delete(GATEWAYS, "shop", "way");
    cluster.put_gateway("way");
    let replica = cluster.start_replica("c").await;
    introduced("Waiting").await;
    bound("two", "Waiting").await;
    replica.running.stop().await;
}

#[tokio::test]
async fn overlays_are_applied_reverted_and_rejected() {
    let cluster = Cluster::with_gateways();
    cluster.put_scaled_gateway("way");
    let _replica = cluster
        .start_replica_with("one", &["--waypoints", "{}"])
        .await;
    let deployment = || cluster.server.get(DEPLOYMENTS, "shop", "way");
    let scaler = wait_for_value("the autoscaler", || {
        cluster.server.get(AUTOSCALERS, "shop", "way")
    })
    .await;
    assert_eq!(scaler["spec"]["maxReplicas"], 9);
    assert_eq!(deployment().unwrap()["spec"].get("replicas"), None);
    cluster.set_managed_fields(AUTOSCALERS, json!({}));

    cluster.put_overlays(json!({"deployment": "spec: {replicas: 4, minReadySeconds: 7}"}));
    wait_for_value("the key is followed", || {
        (deployment()?["spec"]["minReadySeconds"] == 7).then_some(())
    })
    .await;
    assert_eq!(deployment().unwrap()["spec"]["replicas"], 4);
    wait_for_value("no autoscaler any more", || {
        let gone = cluster.server.get(AUTOSCALERS, "shop", "way").is_none();
        gone.then_some(())
    })
    .await;

    cluster.set_managed_fields(DEPLOYMENTS, json!({"f:replicas": {}}));
    let stood = deployment().unwrap();
    let evil = "spec: {template: {spec: {serviceAccountName: admin}}}";
    cluster.put_overlays(json!({"deployment": evil}));
    let (_, message) = wait_for_value("it is refused", || {
        let (reason, message) = cluster.accepted_condition("way")?;
        (reason == "InvalidParameters").then_some((reason, message))
    })
    .await;
    let place = "ConfigMap shop/own, key deployment: spec.template.spec.serviceAccountName: ";
    assert!(message.starts_with(place), "{message}");
    assert_eq!(
        deployment().unwrap()["spec"],
        stood["spec"],
        "what stood stays"
    );

    // Once another Gateway has its waypoint, the earlier work is complete: from here on only the
    // ConfigMap changes.
    cluster.put_gateway("other");
    wait_for_value("another waypoint", || {
        cluster.server.get(DEPLOYMENTS, "shop", "other")
    })
    .await;
    cluster.put_overlays(json!({}));
    wait_for_value("what the keys said is undone", || {
        let spec = deployment()?["spec"].clone();
        (spec["replicas"] == 2).then_some(())
    })
    .await;
    wait_for_value("it is accepted again", || {
        (cluster.accepted_condition("way")?.0 == "Accepted").then_some(())
    })
    .await;

    cluster.server.put(
        CONFIG_MAPS,
        json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "defaults", "namespace": "istio-system",
                "labels": {"gateway.istio.io/defaults-for-class": "istio-waypoint"}},
            "data": {"service": "spec: {type: NodePort}"}}),
    );
    wait_for_value("the class's settings are applied to the Service", || {
        let service = cluster.server.get(SERVICES, "shop", "way")?;
        (service["spec"]["type"] == "NodePort").then_some(())
    })
    .await;
}

#[tokio::test]
async fn gateway_class_reports_unknown_definition_releases() {
    let cluster = Cluster::with_gateways();
    let _replica = cluster
        .start_replica_with("one", &["--waypoints", "{}"])
        .await;
    let supported = || {
        let class = cluster.server.get(GATEWAY_CLASSES, "", "istio-waypoint")?;
        let conditions = class["status"]["conditions"].as_array()?.clone();
        let is_it = |one: &&Value| one["type"] == "SupportedVersion";
        Some(conditions.iter().find(is_it)?["status"].clone())
    };
    wait_for_value("none is named", || (supported()? == "False").then_some(())).await;
    let name = "gateways.gateway.networking.k8s.io";
    let release = |release: &str| {
        let mut definition = cluster.server.get(CRDS, "", name).unwrap();
        definition["metadata"]["annotations"] =
            json!({"gateway.networking.k8s.io/bundle-version": release});
        cluster.server.put(CRDS, definition);
    };
    release("v1.6.3");
    wait_for_value("a known one", || (supported()? == "True").then_some(())).await;
    release("v9.0.0");
    wait_for_value("another", || (supported()? == "False").then_some(())).await;
    let mut class = cluster
        .server
        .get(GATEWAY_CLASSES, "", "istio-waypoint")
        .unwrap();
    class["metadata"]["generation"] = json!(7);
    cluster.server.put(GATEWAY_CLASSES, class);
    wait_for_value("conditions of the new generation", || {
        let class = cluster.server.get(GATEWAY_CLASSES, "", "istio-waypoint")?;
        let mut conditions = class["status"]["conditions"].as_array()?.iter();
        let all = conditions.all(|one| one["observedGeneration"] == 7);
        all.then_some(())
    })
    .await;
}

#[tokio::test]
async fn foreign_objects_are_kept_and_reported() {
    let cluster = Cluster::with_gateways();
    let own = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "way", "namespace": "shop"}, "spec": {"ports": [{"port": 80}]}});
    cluster.server.put(SERVICES, own.clone());
    cluster.put_gateway("way");
    let _replica = cluster
        .start_replica_with("one", &["--waypoints", "{}"])
        .await;
    wait_for_value("the reason", || {
        (cluster.programmed_condition("way")? == "False Invalid").then_some(())
    })
    .await;
    let service = cluster.server.get(SERVICES, "shop", "way").unwrap();
    assert_eq!(service["spec"], own["spec"]);
    assert_eq!(cluster.server.get(DEPLOYMENTS, "shop", "way"), None);
}
