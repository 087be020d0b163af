//! Tests of trust domains other than the mesh's own: each kind of peer, on both sides of a connection, and changes at
//! run time.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use ambit_mesh_json::TrustDomains as Contents;
use ambit_model::Identity;
use ambit_rt::spawn_abortable;
use ambit_testkit::{Pki, accept_trust_domains, wait_until};
use ambit_tls::{
    HandshakeError, PeerRole, TlsSettings, TrustDomains, TrustDomainsError, TrustWithdrawalReason,
    WorkloadCert, accept, connect,
};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::duplex;

const DAY: Duration = Duration::from_secs(86_400);

fn id(domain: &str) -> Identity {
    Identity::new(domain, "ns", "peer")
}

/// Test CAs: this mesh's own (trust domain `td` with the alias `old`), a further root of `td`, the root of `west`, and
/// an unaccepted one.
struct TestMeshes {
    own: Pki,
    further_root: Pki,
    west: Pki,
    unaccepted_root: Pki,
    domains: TrustDomains,
}

impl TestMeshes {
    fn new() -> Self {
        let meshes = Self {
            own: Pki::new(),
            further_root: Pki::new(),
            west: Pki::new(),
            unaccepted_root: Pki::new(),
            domains: TrustDomains::new(),
        };
        meshes.accept(
            &["old"],
            &[("td", &meshes.further_root), ("west", &meshes.west)],
        );
        meshes
    }

    fn accept(&self, aliases: &[&str], roots: &[(&str, &Pki)]) {
        accept_trust_domains(&self.domains, aliases, roots);
    }

    fn own_certificate(&self) -> Arc<WorkloadCert> {
        let settings = TlsSettings::default().with_trust_domains(self.domains.clone());
        let own = Identity::new("td", "ns", "ours");
        let certificate = self.own.cert_with(&settings, &own, SystemTime::now(), DAY);
        Arc::new(certificate)
    }

    fn pki(&self, name: &str) -> &Pki {
        match name {
            "own" => &self.own,
            "further" => &self.further_root,
            "west" => &self.west,
            _ => &self.unaccepted_root,
        }
    }
}

/// Whether `ours` accepts a peer, both as a client and as the expected server.
async fn accepts(ours: &WorkloadCert, peer: &WorkloadCert, expected: &[Identity]) -> (bool, bool) {
    let (near, far) = duplex(64 * 1024);
    let (_, as_client) = tokio::join!(
        connect(any_server(peer), near),
        accept(ours.server_config().unwrap(), far)
    );
    let (near, far) = duplex(64 * 1024);
    let (as_server, _) = tokio::join!(
        connect(ours.client_config(expected).unwrap(), near),
        accept(any_client(peer), far)
    );
    (is_accepted(&as_client), is_accepted(&as_server))
}

fn is_accepted<T>(outcome: &Result<T, HandshakeError>) -> bool {
    let refusal = outcome.as_ref().err();
    let is_of_tls = |error: &HandshakeError| matches!(error, HandshakeError::Tls(_));
    assert!(refusal.is_none_or(is_of_tls), "{refusal:?}");
    refusal.is_none()
}

/// Builds a client configuration with a peer's certificate that accepts any server.
fn any_server(peer: &WorkloadCert) -> Arc<rustls::ClientConfig> {
    crate::handshake::client_config(Some(peer), &[&rustls::version::TLS13], &[b"h2"])
}

fn any_client(peer: &WorkloadCert) -> Arc<rustls::ServerConfig> {
    let own = peer.server_config().unwrap();
    let builder = rustls::ServerConfig::builder_with_provider(TlsSettings::default().provider());
    let mut config = builder
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(own.cert_resolver.clone());
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

#[tokio::test]
async fn roots_verify_peers_of_their_own_trust_domain_only() {
    let meshes = TestMeshes::new();
    let ours = meshes.own_certificate();
    for (domain, signer, as_client, as_server) in [
        ("td", "own", true, true),
        ("td", "further", true, true),
        ("td", "west", false, false),
        ("td", "stranger", false, false),
        ("old", "own", true, true),
        ("old", "further", true, true),
        ("old", "west", false, false),
        ("old", "stranger", false, false),
        ("west", "west", true, true),
        ("west", "own", false, false),
        ("west", "further", false, false),
        ("west", "stranger", false, false),
        // A server of a trust domain without roots may be named by a record, as a client may not.
        ("foreign", "own", false, true),
        ("foreign", "west", false, false),
        ("foreign", "stranger", false, false),
    ] {
        let peer = meshes.pki(signer).cert(&id(domain));
        let accepted = accepts(&ours, &peer, &[id(domain)]).await;
        assert_eq!(accepted, (as_client, as_server), "{domain} by {signer}");
    }
}

#[tokio::test]
async fn servers_may_have_any_name_of_the_expected_trust_domain() {
    let meshes = TestMeshes::new();
    let ours = meshes.own_certificate();
    for (expected, domain, signer, is_expected) in [
        ("td", "old", "own", true),
        ("old", "td", "own", true),
        ("td", "west", "west", false),
        ("old", "west", "west", false),
        ("west", "td", "own", false),
        ("west", "old", "own", false),
        ("td", "foreign", "own", false),
    ] {
        let peer = meshes.pki(signer).cert(&id(domain));
        let (_, as_server) = accepts(&ours, &peer, &[id(expected)]).await;
        assert_eq!(as_server, is_expected, "{domain} for {expected}");
        let other = Identity::new(expected, "ns", "other");
        let (_, as_server) = accepts(&ours, &peer, &[other]).await;
        assert!(!as_server, "another workload");
    }
}

#[tokio::test]
async fn aliases_with_roots_are_verified_by_these_alone() {
    let meshes = TestMeshes::new();
    meshes.accept(&["west"], &[("west", &meshes.west)]);
    let ours = meshes.own_certificate();
    let by_west = meshes.west.cert(&id("west"));
    assert_eq!(accepts(&ours, &by_west, &[id("td")]).await, (true, true));
    let by_own = meshes.own.cert(&id("west"));
    assert_eq!(accepts(&ours, &by_own, &[id("td")]).await, (false, false));
}

#[tokio::test]
async fn calls_of_other_meshes_waypoints_are_refused() {
    let meshes = TestMeshes::new();
    let ours = meshes.own_certificate();
    for (domain, signer, is_expected) in [("td", "own", true), ("west", "west", false)] {
        let calls = Identity::for_waypoint_calls(domain, "ns");
        let peer = meshes.pki(signer).cert(&calls);
        let (as_client, _) = accepts(&ours, &peer, &[calls]).await;
        assert_eq!(as_client, is_expected, "{domain}");
    }
}

/// Builds a certificate with several SANs; returns the configuration of a client with it, and its root in PEM.
fn with_names(names: &[&str]) -> (Arc<rustls::ClientConfig>, String) {
    let root_key = KeyPair::generate().unwrap();
    let mut root = CertificateParams::default();
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = root.self_signed(&root_key).unwrap();
    let mut leaf = CertificateParams::default();
    let names = names.iter();
    leaf.subject_alt_names = names
        .map(|name| SanType::URI((*name).try_into().unwrap()))
        .collect();
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let signed = leaf.signed_by(&key, &Issuer::new(root, root_key)).unwrap();
    let chain: Vec<CertificateDer<'static>> = vec![signed.into()];
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let stranger = Pki::new().cert(&id("td"));
    let mut config = rustls::ClientConfig::clone(&any_server(&stranger));
    let own = rustls::sign::SingleCertAndKey::from(rustls::sign::CertifiedKey::new(
        chain,
        rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).unwrap(),
    ));
    config.client_auth_cert_resolver = Arc::new(own);
    let pem = ambit_tls::pem::encode_pem("CERTIFICATE", certificate.der());
    (Arc::new(config), pem)
}

#[tokio::test]
async fn names_of_several_trust_domains_are_refused() {
    let meshes = TestMeshes::new();
    let ours = meshes.own_certificate();
    let west = "spiffe://west/ns/ns/sa/peer";
    for (names, is_expected) in [
        (vec![west], true),
        (vec![west, "spiffe://west/ns/ns/sa/other"], true),
        (vec![west, "https://td/ns/ns/sa/peer"], true),
        (vec!["spiffe://td/ns/ns/sa/peer", west], false),
        (vec![west, "spiffe://td/ns/ns/sa/peer"], false),
        (vec![west, "spiffe://td/other"], false),
        (vec!["spiffe://td/other", west], false),
        (vec!["spiffe://west/other"], false),
        (vec!["https://west/ns/ns/sa/peer"], false),
    ] {
        let (client, root) = with_names(&names);
        let contents = Contents {
            roots: [("west".to_owned(), root)].into(),
            ..Contents::default()
        };
        meshes.domains.replace(&contents).unwrap();
        let (near, far) = duplex(64 * 1024);
        let (_, accepted) = tokio::join!(
            connect(client, near),
            accept(ours.server_config().unwrap(), far)
        );
        assert_eq!(is_accepted(&accepted), is_expected, "{names:?}");
        if let Ok((_, identity)) = accepted {
            assert_eq!(identity, Some(id("west")));
        }
    }
}

#[tokio::test]
async fn peers_of_removed_trust_domains_are_withdrawn() {
    let meshes = TestMeshes::new();
    let ours = meshes.own_certificate();
    let certificate = |domain: &str, signer: &str| meshes.pki(signer).cert(&id(domain));
    let own = certificate("td", "own");
    let peers = [
        certificate("old", "own"),
        certificate("west", "west"),
        certificate("td", "further"),
    ];
    let both = [PeerRole::Client, PeerRole::Server(&[id("td"), id("west")])];
    let now = SystemTime::now();
    for peer in both {
        for accepted in &peers {
            assert_eq!(ours.withdrawal_reason(peer, accepted.chain(), now), None);
        }
    }
    let expected = [id("td"), id("west")];
    let waits = |peer: &WorkloadCert| {
        let both = [PeerRole::Client, PeerRole::Server(&expected)];
        both.map(|role| ours.wait_for_trust_withdrawal(role, peer.chain()).unwrap())
    };
    let waiting: Vec<_> = peers.iter().flat_map(waits).collect();
    let tasks: Vec<_> = waiting
        .into_iter()
        .map(|waiting| spawn_abortable("withdrawn", waiting))
        .collect();
    // A change that concerns none of them.
    meshes.accept(
        &["old", "new"],
        &[("td", &meshes.further_root), ("west", &meshes.west)],
    );
    tokio::task::yield_now().await;
    assert!(tasks.iter().all(|task| !task.is_finished()));
    // West has other roots.
    meshes.accept(&[], &[("west", &meshes.unaccepted_root)]);
    wait_until("all are withdrawn", || {
        tasks.iter().all(|task| task.is_finished())
    })
    .await;
    for peer in both {
        for gone in &peers {
            let why = ours.withdrawal_reason(peer, gone.chain(), now);
            assert_eq!(why, Some(TrustWithdrawalReason::TrustDomainChanged));
        }
        assert_eq!(ours.withdrawal_reason(peer, own.chain(), now), None);
    }
}

#[tokio::test]
async fn connections_within_the_mesh_wait_for_no_change() {
    let own = Pki::new();
    let (ours, peer) = (Arc::new(own.cert(&id("td"))), own.cert(&id("td")));
    assert!(
        ours.wait_for_trust_withdrawal(PeerRole::Client, peer.chain())
            .is_none()
    );
    let alias = own.cert(&id("old"));
    assert!(
        ours.wait_for_trust_withdrawal(PeerRole::Client, alias.chain())
            .is_some()
    );
}

#[tokio::test]
async fn followed_file_may_appear_change_and_disappear() {
    let meshes = TestMeshes::new();
    meshes.accept(&[], &[]);
    let ours = meshes.own_certificate();
    let west = meshes.west.cert(&id("west"));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(Contents::FILE_NAME);
    let accepts = |ours: Arc<WorkloadCert>| {
        ours.withdrawal_reason(PeerRole::Client, west.chain(), SystemTime::now())
            .is_none()
    };
    let _follow = spawn_abortable(
        "follow",
        meshes.domains.clone().reload_on_change(path.clone()),
    );
    assert!(!accepts(ours.clone()));
    let write = |text: &str| {
        let next = directory.path().join("next");
        std::fs::write(&next, text).unwrap();
        std::fs::rename(&next, &path).unwrap();
    };
    let contents = Contents {
        roots: [("west".to_owned(), meshes.west.root_pem())].into(),
        ..Contents::default()
    };
    write(&serde_json::to_string(&contents).unwrap());
    wait_until("west is accepted", || accepts(ours.clone())).await;
    std::fs::remove_file(&path).unwrap();
    wait_until("west is refused", || !accepts(ours.clone())).await;
}

#[test]
fn broken_file_keeps_the_trust_domains() {
    let meshes = TestMeshes::new();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(Contents::FILE_NAME);
    let ours = meshes.own_certificate();
    let west = meshes.west.cert(&id("west"));
    for (text, is_form) in [
        ("", true),
        (r#"{"alias": []}"#, true),
        (r#"{"roots": {"a": "b"}}"#, false),
        (
            "{\"roots\": {\"a\": \"-----BEGIN CERTIFICATE-----\\nAAAA\\n-----END CERTIFICATE-----\\n\"}}",
            false,
        ),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = meshes.domains.load(&path).unwrap_err();
        let is_of_form = matches!(error, TrustDomainsError::InvalidFile { .. });
        assert_eq!(is_of_form, is_form, "{text}: {error}");
        let now = SystemTime::now();
        assert_eq!(
            ours.withdrawal_reason(PeerRole::Client, west.chain(), now),
            None
        );
    }
}
