//! Tests of the CSR API client against a scripted server on loopback.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use ambit_certificates::{
    CaClient, CertificateCache, CertificateRequest, CsrClient, CsrClientOptions, FetchError,
};
use ambit_control_channel::{CallMetadata, ChannelConfig, RootCa, TokenSource, create_channel};
use ambit_model::Identity;
use ambit_testkit::{CsrResponse, CsrServer, Pki};
use ambit_tls::{ChainError, TlsSettings};
use rustls_pki_types::PrivateKeyDer;

fn test_identity() -> Identity {
    Identity::new("td", "ns", "sa")
}

fn config(server: &CsrServer, roots: RootCa) -> ChannelConfig {
    ChannelConfig {
        address: format!("https://localhost:{}", server.address.port()),
        roots,
        alternative_name: None,
        tls: TlsSettings::default(),
    }
}

fn client_with(config: &ChannelConfig) -> CsrClient {
    let token = TokenSource::Literal("a.b.c".to_owned());
    let headers = CallMetadata::new(Some(token), Some("c1"), [("x-tenant", "t")]).unwrap();
    let options = CsrClientOptions {
        timeout: Duration::from_secs(5),
        ..Default::default()
    };
    CsrClient::new(
        create_channel(config).unwrap(),
        headers,
        TlsSettings::default(),
        options,
    )
}

async fn start_csr_server() -> (Arc<Pki>, CsrServer, CsrClient) {
    let pki = Arc::new(Pki::new());
    let server = CsrServer::start(pki.clone()).await;
    let client = client_with(&config(&server, pki.root_ca()));
    (pki, server, client)
}

#[tokio::test]
async fn certificate_request_follows_the_contract() {
    let (pki, server, client) = start_csr_server().await;
    let cert = client.fetch(&test_identity()).await.unwrap();
    assert_eq!(cert.identity(), &test_identity());
    assert_eq!(cert.chain().len(), 2);
    assert_eq!(cert.roots(), pki.cert(&test_identity()).roots());
    let seen = &server.received_requests()[0];
    assert_eq!(
        seen.impersonated.as_deref(),
        Some("spiffe://td/ns/ns/sa/sa")
    );
    assert_eq!(seen.validity, 86_400);
    assert_eq!(seen.headers.get("authorization").unwrap(), "Bearer a.b.c");
    assert_eq!(seen.headers.get("clusterid").unwrap(), "c1");
    assert_eq!(seen.headers.get("x-tenant").unwrap(), "t");
    client.fetch(&test_identity()).await.unwrap();
    assert_ne!(
        server.received_requests()[0].csr,
        server.received_requests()[1].csr,
        "a new key each time"
    );
}

/// Certificate cache with a single entry for any identity.
#[derive(Default)]
struct SingleCertificateCache(Mutex<Option<(PrivateKeyDer<'static>, Vec<String>)>>);

impl CertificateCache for SingleCertificateCache {
    fn insert(&self, identity: &Identity, key: &PrivateKeyDer<'static>, answer: &[String]) {
        assert_eq!(identity, &test_identity());
        *self.0.lock().unwrap() = Some((key.clone_key(), answer.to_vec()));
    }

    fn take(&self, _identity: &Identity) -> Option<(PrivateKeyDer<'static>, Vec<String>)> {
        self.0.lock().unwrap().take()
    }
}

#[tokio::test]
async fn cached_certificates_are_used_before_the_ca_is_called() {
    let (_pki, server, client) = start_csr_server().await;
    let cache = Arc::new(SingleCertificateCache::default());
    let client = client.with_cache(cache.clone());
    let first = client.fetch(&test_identity()).await.unwrap();
    let again = client.fetch(&test_identity()).await.unwrap();
    assert_eq!(first.chain(), again.chain());
    assert_eq!(server.received_requests().len(), 1);
    assert_ne!(
        client.fetch(&test_identity()).await.unwrap().chain(),
        first.chain()
    );
    // Not usable for the requested identity.
    let cached = cache.0.lock().unwrap().take().unwrap();
    *cache.0.lock().unwrap() = Some((cached.0, cached.1[1..].to_vec()));
    client.fetch(&test_identity()).await.unwrap();
    assert_eq!(server.received_requests().len(), 3);
}

#[tokio::test]
async fn a_client_names_all_identities_but_its_own() {
    let (pki, server, _) = start_csr_server().await;
    let channel = create_channel(&config(&server, pki.root_ca())).unwrap();
    let options = CsrClientOptions {
        own_identity: Some(test_identity()),
        ..Default::default()
    };
    let headers = CallMetadata::default();
    let client = CsrClient::new(channel, headers, TlsSettings::default(), options);
    server.queue_response(CsrResponse::IssueFor(test_identity()));
    client.fetch(&test_identity()).await.unwrap();
    assert_eq!(server.received_requests()[0].impersonated, None);
    assert!(
        server.received_requests()[0]
            .headers
            .get("authorization")
            .is_none()
    );
    let other = Identity::for_waypoint_calls("cluster.local", "shop");
    server.queue_response(CsrResponse::IssueFor(other.clone()));
    client.fetch(&other).await.unwrap();
    assert_eq!(
        server.received_requests()[1].impersonated,
        Some(other.to_string())
    );
}

#[tokio::test]
async fn unusable_ca_responses_are_refused_with_the_reason() {
    let (pki, server, client) = start_csr_server().await;
    let other = Identity::new("td", "ns", "other");
    let request = CertificateRequest::new(&test_identity()).unwrap();
    let for_another_key = pki.csr_response(&request.pem, &test_identity(), Duration::from_secs(60));
    let leaf = for_another_key[0].clone();
    let two_leaves = [format!("{leaf}{leaf}"), for_another_key[2].clone()].to_vec();
    let foreign_root = vec![
        leaf.clone(),
        for_another_key[1].clone(),
        Pki::new().root_pem(),
    ];
    let missing_intermediate = vec![leaf.clone(), for_another_key[2].clone()];
    let huge = vec![leaf.clone(), for_another_key[2].repeat(1000)];
    for (answer, expected) in [
        (CsrResponse::Chain(vec![]), "the certificate chain is empty"),
        (
            CsrResponse::Chain(vec![leaf.clone()]),
            "the certificate chain has 1 entry, so it has no root",
        ),
        (
            CsrResponse::Chain(two_leaves),
            "entry 0 of the certificate chain holds 2 certificates",
        ),
        (
            CsrResponse::Chain(vec!["nonsense".to_owned(), leaf.clone()]),
            "entry 0 of the certificate chain is not a PEM certificate",
        ),
        (
            CsrResponse::Chain(vec![leaf, String::new()]),
            "entry 1 of the certificate chain is not a PEM certificate",
        ),
        (
            CsrResponse::Chain(foreign_root),
            "does not verify against its own roots",
        ),
        (
            CsrResponse::Chain(missing_intermediate),
            "does not verify against its own roots",
        ),
        (CsrResponse::Chain(huge), "more than 256 certificates"),
        (
            CsrResponse::Chain(for_another_key),
            "the private key does not fit the certificate",
        ),
        (
            CsrResponse::IssueFor(other),
            "the certificate is for spiffe://td/ns/ns/sa/other, requested was \
             spiffe://td/ns/ns/sa/sa",
        ),
    ] {
        server.queue_response(answer);
        let error = client.fetch(&test_identity()).await.unwrap_err();
        let FetchError::InvalidResponse(error) = error else {
            panic!("{error:?}")
        };
        assert!(error.to_string().contains(expected), "{error}");
    }
    client
        .fetch(&test_identity())
        .await
        .expect("and the next good one is taken");
}

#[tokio::test]
async fn error_message_of_the_ca_reaches_the_caller() {
    let (_pki, server, client) = start_csr_server().await;
    server.queue_response(CsrResponse::Error(tonic::Status::unauthenticated(
        "not on this node",
    )));
    let error = client.fetch(&test_identity()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the CA answered Unauthenticated: not on this node"
    );
}

#[tokio::test]
async fn silent_ca_times_out() {
    let (pki, server, _) = start_csr_server().await;
    let channel = create_channel(&config(&server, pki.root_ca())).unwrap();
    let options = CsrClientOptions {
        timeout: Duration::from_millis(50),
        ..CsrClientOptions::default()
    };
    let client = CsrClient::new(
        channel,
        CallMetadata::default(),
        TlsSettings::default(),
        options,
    );
    server.queue_response(CsrResponse::NoResponse);
    assert!(matches!(
        client.fetch(&test_identity()).await,
        Err(FetchError::TimedOut(_))
    ));
}

#[tokio::test]
async fn server_with_another_root_or_name_is_refused() {
    let (pki, server, _) = start_csr_server().await;
    let stranger = client_with(&config(&server, Pki::new().root_ca()));
    let error = stranger.fetch(&test_identity()).await.unwrap_err();
    assert!(matches!(error, FetchError::Status(_)), "{error:?}");
    // By a name that is not in the certificate, and then with the name that is.
    let mut config = config(&server, pki.root_ca());
    config.address = format!("https://127.0.0.2:{}", server.address.port());
    assert!(client_with(&config).fetch(&test_identity()).await.is_err());
    assert!(server.received_requests().is_empty());
    config.address = format!("127.0.0.1:{}", server.address.port());
    client_with(&config).fetch(&test_identity()).await.unwrap();
}

#[tokio::test]
async fn the_alternative_name_is_accepted() {
    let pki = Arc::new(Pki::new());
    let listener = tokio::net::TcpListener::bind("127.0.0.2:0").await.unwrap();
    let server = CsrServer::start_on(pki.clone(), listener);
    let mut config = config(&server, pki.root_ca());
    config.address = format!("https://127.0.0.2:{}", server.address.port());
    let error = client_with(&config)
        .fetch(&test_identity())
        .await
        .unwrap_err();
    assert!(matches!(error, FetchError::Status(_)), "{error:?}");
    config.alternative_name = Some("localhost".to_owned());
    client_with(&config).fetch(&test_identity()).await.unwrap();
}

#[tokio::test]
async fn roots_are_read_again_at_each_connection() {
    let pki = Arc::new(Pki::new());
    let server = CsrServer::start(pki.clone()).await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("root-cert.pem");
    let client = client_with(&config(&server, RootCa::File(path.clone())));
    let error = client.fetch(&test_identity()).await.unwrap_err();
    assert!(error.to_string().contains("root-cert.pem"), "{error}");
    std::fs::write(&path, Pki::new().root_pem()).unwrap();
    client.fetch(&test_identity()).await.unwrap_err();
    std::fs::write(&path, pki.root_pem()).unwrap();
    client.fetch(&test_identity()).await.unwrap();
}

#[tokio::test]
async fn a_restarted_server_is_found_again() {
    let pki = Arc::new(Pki::new());
    // A runtime of its own ends the server's connections too.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let server = runtime.spawn(CsrServer::start(pki.clone())).await.unwrap();
    let client = client_with(&config(&server, pki.root_ca()));
    client.fetch(&test_identity()).await.unwrap();
    let address = server.address;
    // It waits until the listening socket is closed: its address is needed again.
    let stop = move || runtime.shutdown_timeout(Duration::from_secs(10));
    tokio::task::spawn_blocking(stop).await.unwrap();
    client.fetch(&test_identity()).await.unwrap_err();
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    let _server = CsrServer::start_on(pki, socket.listen(16).unwrap());
    let mut attempts = 0;
    while client.fetch(&test_identity()).await.is_err() {
        attempts += 1;
        assert!(attempts < 10);
    }
}

#[test]
fn errors_keep_their_causes() {
    let error = FetchError::from(ChainError::NoRoot(1));
    assert_eq!(error.to_string(), "the CA's answer cannot be used");
    assert!(std::error::Error::source(&error).is_some());
}
