//! Tests of certificates from a SPIFFE agent: by the Workload API and by SPIRE's Delegated Identity API.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use ambit_certificates::{
    CaClient, CertError, Certificates, CertificatesOptions, DelegatedIdentity, FetchError,
    SpiffeError, SvidError, WorkloadApi,
};
use ambit_model::Identity;
use ambit_rt::ErrorChain;
use ambit_testkit::{Pki, SpiffeAgent, SpiffeSvid, is_accepted, wait_until};
use ambit_tls::{ChainError, TlsSettings, WorkloadCert};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};

const HOUR: Duration = Duration::from_secs(3600);

fn test_identity(account: &str) -> Identity {
    Identity::new("td", "shop", account)
}

/// SPIFFE API that serves the certificates.
#[derive(Clone, Copy, Debug)]
enum SpiffeApi {
    Workload,
    Delegated,
}

const BOTH_APIS: [SpiffeApi; 2] = [SpiffeApi::Workload, SpiffeApi::Delegated];

/// Fake SPIFFE agent with the trust bundle of a mesh, and the certificate store of a proxy that uses the agent.
struct SpiffeMesh {
    pki: Pki,
    agent: SpiffeAgent,
    certificates: Certificates,
    api: SpiffeApi,
}

impl SpiffeMesh {
    fn new(api: SpiffeApi) -> Self {
        let agent = SpiffeAgent::start();
        let pki = Pki::new();
        agent.change(|entries| {
            entries.bundles.insert("td".to_owned(), pki.bundle());
        });
        let certificates = certificate_store(ca_client(api, &agent));
        Self {
            pki,
            agent,
            certificates,
            api,
        }
    }

    fn register(&self, identity: &Identity, svid: SpiffeSvid, federates_with: &[&str]) {
        self.agent.change(|entries| match self.api {
            SpiffeApi::Workload => entries.workload_svids = vec![svid],
            SpiffeApi::Delegated => entries.register_delegated(identity, svid, federates_with),
        });
    }

    /// Waits until the store has a certificate with this leaf for the identity.
    async fn wait_for_leaf(&self, identity: &Identity, leaf: &[u8]) -> Arc<WorkloadCert> {
        let current = || {
            let cert = self.certificates.peek(identity)?;
            let is_it = cert.chain().first().is_some_and(|der| der[..] == *leaf);
            is_it.then_some(cert)
        };
        wait_until(&format!("the certificate of {:?}", self.api), || {
            current().is_some()
        })
        .await;
        current().unwrap()
    }

    async fn fetch_error(&self, identity: &Identity) -> Arc<FetchError> {
        match self.certificates.get(identity).await {
            Err(CertError::Unavailable { source, .. }) => source,
            other => panic!("{:?}: {other:?}", self.api),
        }
    }
}

fn ca_client(api: SpiffeApi, agent: &SpiffeAgent) -> Arc<dyn CaClient> {
    let settings = TlsSettings::default();
    match api {
        SpiffeApi::Workload => {
            let socket = agent.workload_socket().parse().unwrap();
            Arc::new(WorkloadApi::start(&socket, &settings))
        }
        SpiffeApi::Delegated => {
            let socket = agent.admin_socket().parse().unwrap();
            Arc::new(DelegatedIdentity::start(&socket, &settings))
        }
    }
}

fn certificate_store(client: Arc<dyn CaClient>) -> Certificates {
    Certificates::start(client, CertificatesOptions::default())
}

#[tokio::test]
async fn a_new_svid_replaces_the_old_one_at_once() {
    for api in BOTH_APIS {
        let mesh = SpiffeMesh::new(api);
        let svid = mesh.pki.svid(&test_identity("cart"), HOUR);
        mesh.register(&test_identity("cart"), svid.clone(), &[]);
        let first = mesh.certificates.get(&test_identity("cart")).await.unwrap();
        assert_eq!(first.chain()[0][..], svid.chain[0][..]);
        assert!(is_accepted(&first, &mesh.pki.cert(&test_identity("db"))).await);
        let next = mesh.pki.svid(&test_identity("cart"), HOUR);
        mesh.register(&test_identity("cart"), next.clone(), &[]);
        let second = mesh
            .wait_for_leaf(&test_identity("cart"), &next.chain[0])
            .await;
        assert!(is_accepted(&second, &first).await, "{api:?}");
    }
}

#[tokio::test]
async fn an_identity_without_entry_is_closed_until_it_has_one() {
    for api in BOTH_APIS {
        let mesh = SpiffeMesh::new(api);
        let error = mesh.fetch_error(&test_identity("cart")).await;
        assert!(error.is_refusal());
        let text = ErrorChain(error.as_ref()).to_string();
        assert!(text.contains("create a registration entry"), "{text}");
        let svid = mesh.pki.svid(&test_identity("cart"), HOUR);
        mesh.register(&test_identity("cart"), svid.clone(), &[]);
        mesh.wait_for_leaf(&test_identity("cart"), &svid.chain[0])
            .await;
    }
}

#[tokio::test]
async fn an_unauthorized_delegate_gets_advice() {
    let mesh = SpiffeMesh::new(SpiffeApi::Delegated);
    mesh.agent
        .change(|entries| entries.rejects_delegates = true);
    let certificates = certificate_store(ca_client(SpiffeApi::Delegated, &mesh.agent));
    let error = certificates.get(&test_identity("cart")).await.unwrap_err();
    let text = ErrorChain(&error).to_string();
    assert!(text.contains("authorized_delegates"), "{text}");
}

#[tokio::test]
async fn an_svid_of_another_identity_is_refused() {
    for api in BOTH_APIS {
        let mesh = SpiffeMesh::new(api);
        let other = mesh.pki.svid(&test_identity("other"), HOUR);
        mesh.register(&test_identity("cart"), other.clone(), &[]);
        let error = mesh.fetch_error(&test_identity("cart")).await;
        let text = ErrorChain(error.as_ref()).to_string();
        assert!(
            text.contains("it has spiffe://td/ns/shop/sa/other"),
            "{text}"
        );
        // The message has the expected name, its certificate another.
        let lying = SpiffeSvid {
            id: test_identity("cart").to_string(),
            ..other
        };
        mesh.register(&test_identity("cart"), lying, &[]);
        let is_lie = |error: &SvidError| matches!(error, SvidError::IdentityMismatch(_));
        assert_svid_refused(&mesh, is_lie).await;
    }
}

/// Checks that fetching the SVID of `cart` fails with an expected error.
async fn assert_svid_refused(mesh: &SpiffeMesh, is_expected: impl Fn(&SvidError) -> bool) {
    let direct = ca_client(mesh.api, &mesh.agent);
    direct.subscribe(&test_identity("cart"));
    let error = direct.fetch(&test_identity("cart")).await.unwrap_err();
    assert!(error.is_refusal(), "{error:?}");
    match &error {
        FetchError::Spiffe(SpiffeError::InvalidSvid { source, .. }) if is_expected(source) => {}
        other => panic!("{:?}: {other:?}", mesh.api),
    }
}

#[tokio::test]
async fn unusable_svids_are_refused_for_their_reason() {
    for api in BOTH_APIS {
        let mesh = SpiffeMesh::new(api);
        let good = mesh.pki.svid(&test_identity("cart"), HOUR);
        let without_key = SpiffeSvid {
            key: Vec::new(),
            ..good.clone()
        };
        mesh.register(&test_identity("cart"), without_key, &[]);
        assert_svid_refused(&mesh, |error| matches!(error, SvidError::MissingKey)).await;
        let with_other_key = SpiffeSvid {
            key: mesh.pki.svid(&test_identity("cart"), HOUR).key,
            ..good.clone()
        };
        mesh.register(&test_identity("cart"), with_other_key, &[]);
        assert_svid_refused(&mesh, |error| {
            matches!(error, SvidError::Chain(ChainError::InvalidKey(_)))
        })
        .await;
        let undecodable = SpiffeSvid {
            chain: vec![good.chain[0][..100].to_vec()],
            ..good.clone()
        };
        mesh.register(&test_identity("cart"), undecodable, &[]);
        assert_svid_refused(&mesh, |error| {
            matches!(error, SvidError::Chain(ChainError::Der { index: 0, .. }))
        })
        .await;
        let of_stranger = Pki::new().svid(&test_identity("cart"), HOUR);
        mesh.register(&test_identity("cart"), of_stranger, &[]);
        assert_svid_refused(&mesh, |error| {
            matches!(error, SvidError::Chain(ChainError::Unverified(_)))
        })
        .await;
        let (two_names, bundle) = svid_with_sans(&[&test_identity("cart"), &test_identity("db")]);
        mesh.agent.change(|entries| {
            entries.bundles.insert("td".to_owned(), bundle);
        });
        mesh.register(&test_identity("cart"), two_names, &[]);
        assert_svid_refused(&mesh, |error| matches!(error, SvidError::UriSanCount(2))).await;
    }
}

#[tokio::test]
async fn an_expired_svid_is_refused() {
    for api in BOTH_APIS {
        let mesh = SpiffeMesh::new(api);
        let then = SystemTime::now() - 3 * HOUR;
        mesh.register(
            &test_identity("cart"),
            mesh.pki.svid_at(&test_identity("cart"), then, HOUR),
            &[],
        );
        assert_svid_refused(&mesh, |error| {
            let text = ErrorChain(error).to_string();
            matches!(error, SvidError::Chain(ChainError::Unverified(_))) && text.contains("expired")
        })
        .await;
    }
}

/// Builds an SVID with several SANs, and its trust bundle.
fn svid_with_sans(names: &[&Identity]) -> (SpiffeSvid, Vec<u8>) {
    let root_key = KeyPair::generate().unwrap();
    let mut root = CertificateParams::default();
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let bundle = root.self_signed(&root_key).unwrap().der().to_vec();
    let mut leaf = CertificateParams::default();
    leaf.subject_alt_names = names
        .iter()
        .map(|name| SanType::URI(name.to_string().try_into().unwrap()))
        .collect();
    leaf.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let key = KeyPair::generate().unwrap();
    let signed = leaf.signed_by(&key, &Issuer::new(root, root_key)).unwrap();
    let svid = SpiffeSvid {
        id: names[0].to_string(),
        chain: vec![signed.der().to_vec()],
        key: key.serialize_der(),
    };
    (svid, bundle)
}

#[tokio::test]
async fn an_answer_beyond_the_limit_is_refused() {
    for api in BOTH_APIS {
        let mesh = SpiffeMesh::new(api);
        mesh.register(
            &test_identity("cart"),
            mesh.pki.svid(&test_identity("cart"), HOUR),
            &[],
        );
        mesh.agent.change(|entries| {
            entries.bundles.insert("big".to_owned(), vec![0; 5 << 20]);
        });
        let error = certificate_store(ca_client(api, &mesh.agent))
            .get(&test_identity("cart"))
            .await;
        let text = ErrorChain(&error.unwrap_err()).to_string();
        assert!(text.contains("exceeds the proxy's limit"), "{text}");
    }
}

#[tokio::test]
async fn last_svid_stays_while_the_agent_is_unavailable() {
    for api in BOTH_APIS {
        let mut mesh = SpiffeMesh::new(api);
        let svid = mesh.pki.svid(&test_identity("cart"), HOUR);
        mesh.register(&test_identity("cart"), svid, &[]);
        let first = mesh.certificates.get(&test_identity("cart")).await.unwrap();
        mesh.agent.stop();
        let again = mesh.certificates.get(&test_identity("cart")).await.unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        // A proxy without certificates reports that the agent is unavailable, and gets its
        // certificate once the agent is back.
        let other = certificate_store(ca_client(api, &mesh.agent));
        let error = other.get(&test_identity("cart")).await.unwrap_err();
        let text = ErrorChain(&error).to_string();
        assert!(
            text.contains("check that the agent runs on this node"),
            "{text}"
        );
        let next = mesh.pki.svid(&test_identity("cart"), HOUR);
        mesh.register(&test_identity("cart"), next.clone(), &[]);
        mesh.agent.restart();
        mesh.wait_for_leaf(&test_identity("cart"), &next.chain[0])
            .await;
        wait_until("the other proxy's certificate", || {
            other.peek(&test_identity("cart")).is_some()
        })
        .await;
    }
}

#[tokio::test]
async fn clients_of_a_withdrawn_root_are_refused() {
    for api in BOTH_APIS {
        let mesh = SpiffeMesh::new(api);
        let next = Pki::new();
        let both = [mesh.pki.bundle(), next.bundle()].concat();
        mesh.agent.change(|entries| {
            entries.bundles.insert("td".to_owned(), both);
        });
        let svid = next.svid(&test_identity("cart"), HOUR);
        mesh.register(&test_identity("cart"), svid, &[]);
        let cert = mesh.certificates.get(&test_identity("cart")).await.unwrap();
        let old = client_certificate("td", &mesh.pki, &next);
        assert!(is_accepted(&old, &cert).await, "{api:?}");
        mesh.agent.change(|entries| {
            entries.bundles.insert("td".to_owned(), next.bundle());
        });
        let current = || mesh.certificates.peek(&test_identity("cart")).unwrap();
        wait_until("the new roots", || current().roots().len() == 1).await;
        assert!(!is_accepted(&old, &current()).await, "{api:?}");
    }
}

#[tokio::test]
async fn federated_trust_domains_are_those_of_the_registration_entry() {
    for api in BOTH_APIS {
        let (mesh, west) = (SpiffeMesh::new(api), Pki::new());
        mesh.agent.change(|entries| {
            entries.bundles.insert("west".to_owned(), west.bundle());
        });
        mesh.register(
            &test_identity("cart"),
            mesh.pki.svid(&test_identity("cart"), HOUR),
            &["west"],
        );
        let cert = mesh.certificates.get(&test_identity("cart")).await.unwrap();
        let client = client_certificate("west", &west, &mesh.pki);
        assert!(is_accepted(&client, &cert).await, "{api:?}");
        if matches!(api, SpiffeApi::Delegated) {
            let db = mesh.pki.svid(&test_identity("db"), HOUR);
            mesh.register(&test_identity("db"), db, &[]);
            let without = mesh.certificates.get(&test_identity("db")).await.unwrap();
            assert!(!is_accepted(&client, &without).await);
        }
        mesh.agent.change(|entries| {
            entries.bundles.remove("west");
        });
        let gone = async || !is_accepted(&client, &cert).await;
        tokio::time::timeout(Duration::from_secs(20), async {
            while !gone().await {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("the withdrawn trust domain is refused");
    }
}

/// Builds the certificate of a client in a trust domain. The client verifies servers of the trust domain `td` by the
/// roots of `of_servers`.
fn client_certificate(domain: &str, pki: &Pki, of_servers: &Pki) -> WorkloadCert {
    let settings = TlsSettings::default();
    ambit_testkit::accept_trust_domains(settings.trust_domains(), &[], &[("td", of_servers)]);
    let identity = Identity::new(domain, "shop", "peer");
    pki.cert_with(&settings, &identity, SystemTime::now(), HOUR)
}

#[test]
fn sockets_are_absolute_unix_paths() {
    let parse = |text: &str| text.parse::<ambit_certificates::SpiffeSocket>();
    for text in ["unix:///run/a.sock", "unix:/run/a.sock"] {
        assert_eq!(parse(text).unwrap().to_string(), "unix:///run/a.sock");
    }
    let refused = ["/run/a.sock", "unix://run/a.sock", "tcp://127.0.0.1:1", ""];
    let errors: BTreeSet<_> = refused
        .into_iter()
        .filter(|text| parse(text).is_err())
        .collect();
    assert_eq!(errors.len(), refused.len());
}
