//! Tests of which peers are accepted and refused, for every pair of client and server.

use std::{sync::Arc, time::Duration};

use ambit_model::{FailureReason, Identity};
use ambit_testkit::Pki;
use ambit_tls::{HandshakeError, TlsSettings, WorkloadCert, accept, connect, failure_reason};
use rustls::{ClientConfig, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

fn id(name: &str) -> Identity {
    Identity::new("td", "ns", name)
}

struct HandshakeOutcome {
    client: Result<(), HandshakeError>,
    server: Result<Option<Identity>, HandshakeError>,
}

/// Performs one handshake and sends a byte in each direction.
async fn perform_handshake(
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
) -> HandshakeOutcome {
    let (near, far) = duplex(64 * 1024);
    let client = async {
        let mut stream = connect(client, near).await?;
        // In TLS 1.3 a client gets the server's refusal only when it reads.
        stream.write_all(b"c").await?;
        let mut byte = [0];
        stream.read_exact(&mut byte).await?;
        Ok(())
    };
    let server = async {
        let (mut stream, identity) = accept(server, far).await?;
        let mut byte = [0];
        stream.read_exact(&mut byte).await?;
        stream.write_all(b"s").await?;
        stream.flush().await?;
        Ok(identity)
    };
    let (client, server) = tokio::time::timeout(Duration::from_secs(10), async {
        tokio::join!(client, server)
    })
    .await
    .expect("handshakes end");
    HandshakeOutcome { client, server }
}

async fn handshake_between(
    client: &WorkloadCert,
    expected: &[Identity],
    server: &WorkloadCert,
) -> HandshakeOutcome {
    perform_handshake(
        client.client_config(expected).unwrap(),
        server.server_config().unwrap(),
    )
    .await
}

fn text(error: &HandshakeError) -> String {
    use std::error::Error;
    format!(
        "{error}: {}",
        error.source().map(ToString::to_string).unwrap_or_default()
    )
}

#[tokio::test]
async fn peers_of_one_mesh_accept_each_other() {
    let pki = Pki::new();
    let (client, server) = (pki.cert(&id("client")), pki.cert(&id("server")));
    let ended = handshake_between(&client, &[id("other"), id("server")], &server).await;
    ended.client.unwrap();
    assert_eq!(ended.server.unwrap(), Some(id("client")));
}

#[tokio::test]
async fn server_with_another_identity_is_refused() {
    let pki = Pki::new();
    let (client, server) = (pki.cert(&id("client")), pki.cert(&id("server")));
    for expected in [
        vec![id("other")],
        vec![Identity::new("td", "ns2", "server")],
        vec![Identity::new("td2", "ns", "server")],
        // A prefix is not a match.
        vec![id("serve"), id("server2")],
        // An empty list accepts no server.
        vec![],
    ] {
        let ended = handshake_between(&client, &expected, &server).await;
        let error = ended.client.unwrap_err();
        assert_eq!(error.reason(), FailureReason::TlsFailure);
        assert!(
            text(&error).contains("the server is spiffe://td/ns/ns/sa/server"),
            "{}",
            text(&error)
        );
        assert!(ended.server.is_err());
    }
}

#[tokio::test]
async fn a_client_of_another_trust_domain_is_refused() {
    let pki = Pki::new();
    let client = pki.cert(&Identity::new("foreign", "ns", "client"));
    let server = pki.cert(&id("server"));
    let ended = handshake_between(&client, &[id("server")], &server).await;
    let error = ended.server.unwrap_err();
    assert_eq!(error.reason(), FailureReason::TlsFailure);
    assert!(
        text(&error)
            .contains("the client is spiffe://foreign/ns/ns/sa/client, not of trust domain td"),
        "{}",
        text(&error)
    );
    assert_eq!(
        ended.client.unwrap_err().reason(),
        FailureReason::TlsFailure
    );
}

#[tokio::test]
async fn a_foreign_mesh_is_refused_on_both_sides() {
    let (ours, theirs) = (Pki::new(), Pki::new());
    let ended = handshake_between(
        &ours.cert(&id("client")),
        &[id("server")],
        &theirs.cert(&id("server")),
    )
    .await;
    assert!(text(&ended.client.unwrap_err()).contains("UnknownIssuer"));
    // The client trusts both meshes here, the server does not.
    let client = theirs.cert(&id("client"));
    let lenient = client_config(Some(&client), &[&rustls::version::TLS13], &[b"h2"]);
    let ended = perform_handshake(lenient, ours.cert(&id("server")).server_config().unwrap()).await;
    assert!(text(&ended.server.unwrap_err()).contains("UnknownIssuer"));
}

#[tokio::test]
async fn expired_certificates_are_refused_on_both_sides() {
    let pki = Pki::new();
    let (good, bad) = (pki.cert(&id("good")), pki.expired_cert(&id("bad")));
    let ended = handshake_between(&good, &[id("bad")], &bad).await;
    assert!(text(&ended.client.unwrap_err()).contains("expired"));
    let ended = handshake_between(&bad, &[id("good")], &good).await;
    assert!(text(&ended.server.unwrap_err()).contains("expired"));
    assert!(ended.client.is_err());
}

/// Builds a client configuration that accepts any server, as an attacker may have.
pub(crate) fn client_config(
    cert: Option<&WorkloadCert>,
    versions: &[&'static rustls::SupportedProtocolVersion],
    alpn: &[&[u8]],
) -> Arc<ClientConfig> {
    let mut config = ClientConfig::builder_with_provider(TlsSettings::new(true, false).provider())
        .with_protocol_versions(versions)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer))
        .with_no_client_auth();
    if let Some(cert) = cert {
        let own = cert.client_config(&[]).unwrap();
        config.client_auth_cert_resolver = own.client_auth_cert_resolver.clone();
    }
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config.enable_sni = false;
    Arc::new(config)
}

#[derive(Debug)]
struct AnyServer;

impl rustls::client::danger::ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &rustls_pki_types::CertificateDer<'_>,
        _: &[rustls_pki_types::CertificateDer<'_>],
        _: &rustls_pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls_pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls_pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }
    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls_pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }
    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        TlsSettings::default()
            .provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[tokio::test]
async fn a_client_without_a_certificate_is_refused() {
    let pki = Pki::new();
    let config = client_config(None, &[&rustls::version::TLS13], &[b"h2"]);
    let ended = perform_handshake(config, pki.cert(&id("server")).server_config().unwrap()).await;
    assert!(text(&ended.server.unwrap_err()).contains("peer sent no certificates"));
    assert!(ended.client.is_err());
}

#[tokio::test]
async fn tls_1_2_is_refused_unless_enabled() {
    let pki = Pki::new();
    let cert = pki.cert(&id("client"));
    let old = || client_config(Some(&cert), &[&rustls::version::TLS12], &[b"h2"]);
    let ended = perform_handshake(old(), pki.cert(&id("server")).server_config().unwrap()).await;
    assert!(ended.client.is_err() && ended.server.is_err());

    let lenient = TlsSettings::new(true, false);
    let now = std::time::SystemTime::now();
    let server = pki.cert_with(&lenient, &id("server"), now, Duration::from_secs(60));
    let ended = perform_handshake(old(), server.server_config().unwrap()).await;
    ended.client.unwrap();
    assert_eq!(ended.server.unwrap(), Some(id("client")));
}

#[tokio::test]
async fn only_alpn_h2_is_spoken() {
    let pki = Pki::new();
    let cert = pki.cert(&id("client"));
    let server = pki.cert(&id("server")).server_config().unwrap();
    for alpn in [&[b"http/1.1".as_slice()][..], &[]] {
        let config = client_config(Some(&cert), &[&rustls::version::TLS13], alpn);
        let ended = perform_handshake(config, server.clone()).await;
        assert_eq!(
            ended.server.unwrap_err().reason(),
            FailureReason::TlsFailure,
            "{alpn:?}"
        );
        assert!(ended.client.is_err());
    }
    // A server that ignores ALPN.
    let own = pki.cert(&id("server"));
    let mut config = ServerConfig::clone(&own.server_config().unwrap());
    config.alpn_protocols.clear();
    let client = cert.client_config(&[id("server")]).unwrap();
    let ended = perform_handshake(client, Arc::new(config)).await;
    assert!(matches!(ended.client, Err(HandshakeError::NoCommonAlpn)));
}

#[tokio::test]
async fn the_client_hello_names_no_host_and_offers_aes_gcm_only() {
    let pki = Pki::new();
    let (near, mut far) = duplex(64 * 1024);
    let config = pki
        .cert(&id("client"))
        .client_config(&[id("server")])
        .unwrap();
    let client = ambit_rt::spawn_abortable("client", connect(config, near));
    let mut hello = vec![0; 4096];
    let read = far.read(&mut hello).await.unwrap();
    drop(client);
    let mut acceptor = rustls::server::Acceptor::default();
    acceptor.read_tls(&mut &hello[..read]).unwrap();
    let accepted = acceptor.accept().unwrap().expect("a whole ClientHello");
    let hello = accepted.client_hello();
    assert_eq!(hello.server_name(), None);
    assert_eq!(hello.alpn().unwrap().collect::<Vec<_>>(), [b"h2"]);
    let suites: Vec<_> = hello
        .cipher_suites()
        .iter()
        .copied()
        // A signalling value, not a suite.
        .filter(|suite| *suite != rustls::CipherSuite::TLS_EMPTY_RENEGOTIATION_INFO_SCSV)
        .collect();
    assert_eq!(
        suites,
        [
            rustls::CipherSuite::TLS13_AES_128_GCM_SHA256,
            rustls::CipherSuite::TLS13_AES_256_GCM_SHA384
        ]
    );
    let groups = hello.named_groups().unwrap();
    assert_eq!(
        groups,
        [
            rustls::NamedGroup::X25519,
            rustls::NamedGroup::secp256r1,
            rustls::NamedGroup::secp384r1,
            rustls::NamedGroup::X25519MLKEM768
        ]
    );
}

#[tokio::test]
async fn post_quantum_only_peers_agree() {
    let pki = Pki::with_settings(TlsSettings::new(false, true));
    let (client, server) = (pki.cert(&id("client")), pki.cert(&id("server")));
    let ended = handshake_between(&client, &[id("server")], &server).await;
    ended.client.unwrap();
    // And with a peer that merely allows it.
    let now = std::time::SystemTime::now();
    let usual = pki.cert_with(
        &TlsSettings::default(),
        &id("usual"),
        now,
        Duration::from_secs(60),
    );
    handshake_between(&client, &[id("usual")], &usual)
        .await
        .client
        .unwrap();
    handshake_between(&usual, &[id("server")], &server)
        .await
        .client
        .unwrap();
}

#[tokio::test]
async fn a_lost_connection_is_not_a_tls_failure() {
    let pki = Pki::new();
    let (near, far) = duplex(1024);
    drop(far);
    let config = pki
        .cert(&id("client"))
        .client_config(&[id("server")])
        .unwrap();
    let error = connect(config, near).await.unwrap_err();
    assert_eq!(error.reason(), FailureReason::Connect);
    let error: Box<dyn std::error::Error> = Box::new(error);
    assert_eq!(failure_reason(error.as_ref()), FailureReason::Connect);
}

#[tokio::test]
async fn the_reason_is_found_behind_io_errors() {
    let wrapped = std::io::Error::other(std::io::Error::other(rustls::Error::DecryptError));
    assert_eq!(failure_reason(&wrapped), FailureReason::TlsFailure);
    assert_eq!(
        failure_reason(&std::io::Error::other("x")),
        FailureReason::Connect
    );
}

#[test]
fn configurations_are_cached_by_set_of_identities() {
    let cert = Pki::new().cert(&id("client"));
    let one = cert.client_config(&[id("a")]).unwrap();
    assert!(Arc::ptr_eq(&one, &cert.client_config(&[id("a")]).unwrap()));
    assert!(!Arc::ptr_eq(&one, &cert.client_config(&[id("b")]).unwrap()));
    assert!(Arc::ptr_eq(
        &cert.server_config().unwrap(),
        &cert.server_config().unwrap()
    ));
    // Many sets do not accumulate.
    for index in 0..5000 {
        cert.client_config(&[id(&index.to_string())]).unwrap();
    }
}

#[tokio::test]
async fn tls_sessions_are_not_resumed() {
    let pki = Pki::new();
    let (client, server) = (pki.cert(&id("client")), pki.cert(&id("server")));
    for _ in 0..2 {
        let (near, far) = duplex(64 * 1024);
        let (client, server) = tokio::join!(
            connect(client.client_config(&[id("server")]).unwrap(), near),
            accept(server.server_config().unwrap(), far)
        );
        let (server, _) = server.unwrap();
        assert_eq!(
            client.unwrap().get_ref().1.handshake_kind(),
            Some(rustls::HandshakeKind::Full)
        );
        assert_eq!(
            server.get_ref().1.handshake_kind(),
            Some(rustls::HandshakeKind::Full)
        );
    }
}
