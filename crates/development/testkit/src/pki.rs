//! PKI of a mesh, generated for a test.

use std::time::{Duration, SystemTime};

use ambit_certificates::CertificateRequest;
use ambit_control_channel::RootCa;
use ambit_issuer::Authority;
use ambit_mesh_json::TrustDomains as Contents;
use ambit_model::Identity;
use ambit_tls::{RevocationLists, TlsSettings, TrustDomains, WorkloadCert, accept, connect};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::duplex;

use crate::SpiffeSvid;

const DAY: Duration = Duration::from_secs(86_400);

/// Replaces the accepted trust domains: `aliases` of the mesh's own trust domain, and other meshes' trust domains, each
/// with its root CA.
pub fn accept_trust_domains(domains: &TrustDomains, aliases: &[&str], roots: &[(&str, &Pki)]) {
    let roots = roots.iter();
    let contents = Contents {
        aliases: aliases.iter().map(ToString::to_string).collect(),
        roots: roots
            .map(|(domain, pki)| ((*domain).to_owned(), pki.root_pem()))
            .collect(),
    };
    domains.replace(&contents).expect("roots");
}

/// Returns whether the server accepts the client's certificate, and the client accepts the server's for its identity.
pub async fn is_accepted(client: &WorkloadCert, server: &WorkloadCert) -> bool {
    let (near, far) = duplex(64 * 1024);
    let expected = std::slice::from_ref(server.identity());
    let (client, server) = tokio::join!(
        connect(client.client_config(expected).expect("a config"), near),
        accept(server.server_config().expect("a config"), far)
    );
    client.is_ok() && server.is_ok()
}

/// PKI of a mesh, with a root CA and an intermediate CA that signs.
#[derive(Debug)]
pub struct Pki {
    root: Authority,
    intermediate: Authority,
    /// TLS settings of the issued certificates.
    pub settings: TlsSettings,
}

impl Default for Pki {
    fn default() -> Self {
        Self::new()
    }
}

impl Pki {
    /// Creates a PKI with a new root; certificates of two PKIs do not trust each other.
    pub fn new() -> Self {
        Self::with_settings(TlsSettings::default())
    }

    /// Creates a PKI like [`Self::new`], with these TLS settings.
    pub fn with_settings(settings: TlsSettings) -> Self {
        // Backdated so that expired certificates can be issued, too.
        let born = SystemTime::now() - 30 * DAY;
        let root = Authority::new_root("test", 365 * DAY, born).expect("a root");
        let signer = root
            .new_intermediate("test", 365 * DAY, born)
            .expect("an intermediate");
        Self {
            root,
            intermediate: signer,
            settings,
        }
    }

    /// Creates a PKI whose settings contain CRLs, which are initially empty.
    pub fn with_crls() -> (Self, RevocationLists) {
        let crls = RevocationLists::new();
        (
            Self::with_settings(TlsSettings::default().with_crls(crls.clone())),
            crls,
        )
    }

    /// Issues a certificate that is valid for a day.
    pub fn cert(&self, identity: &Identity) -> WorkloadCert {
        self.cert_at(identity, SystemTime::now(), DAY)
    }

    /// Issues a certificate like [`Self::cert`], for a SPIFFE ID as text.
    pub fn cert_for_spiffe_id(&self, spiffe_id: &str) -> WorkloadCert {
        self.cert(&spiffe_id.parse().expect("a SPIFFE id"))
    }

    /// Issues a certificate that expired an hour ago.
    pub fn expired_cert(&self, identity: &Identity) -> WorkloadCert {
        self.cert_at(
            identity,
            SystemTime::now() - DAY - Duration::from_secs(3600),
            DAY,
        )
    }

    /// Issues a certificate as of the time `now`, with the lifetime `ttl`.
    pub fn cert_at(&self, identity: &Identity, now: SystemTime, ttl: Duration) -> WorkloadCert {
        self.cert_with(&self.settings, identity, now, ttl)
    }

    /// Issues a certificate whose TLS settings differ from the PKI's.
    pub fn cert_with(
        &self,
        settings: &TlsSettings,
        identity: &Identity,
        now: SystemTime,
        ttl: Duration,
    ) -> WorkloadCert {
        let request = CertificateRequest::new(identity).expect("a request");
        let answer = self
            .intermediate
            .issue(&request.pem, identity, ttl, now)
            .expect("an issued certificate");
        let entries = |entry: &String| pem(entry);
        let mut chain: Vec<_> = answer.iter().flat_map(entries).collect();
        chain.truncate(2);
        let roots = self.root.roots().to_vec();
        WorkloadCert::valid_at(settings, chain, request.key, roots, now)
            .expect("a valid certificate")
    }

    /// Issues an X.509-SVID that is valid for `ttl`.
    pub fn svid(&self, identity: &Identity, ttl: Duration) -> SpiffeSvid {
        self.svid_at(identity, SystemTime::now(), ttl)
    }

    /// Issues an X.509-SVID as of the time `now`, with the lifetime `ttl`.
    pub fn svid_at(&self, identity: &Identity, now: SystemTime, ttl: Duration) -> SpiffeSvid {
        let (chain, key) = self
            .intermediate
            .issue_workload(identity, ttl, now)
            .expect("an issued certificate");
        SpiffeSvid {
            id: identity.to_string(),
            chain: chain.iter().map(|der| der.to_vec()).collect(),
            key: key.secret_der().to_vec(),
        }
    }

    /// Returns the root certificate as DER, as in SPIFFE bundles.
    pub fn bundle(&self) -> Vec<u8> {
        let roots = self.root.roots().iter();
        roots.flat_map(|root| root.to_vec()).collect()
    }

    /// Returns the CSR API's response to a certificate request (PEM) for this identity.
    pub fn csr_response(
        &self,
        request_pem: &str,
        identity: &Identity,
        ttl: Duration,
    ) -> Vec<String> {
        self.intermediate
            .issue(request_pem, identity, ttl, SystemTime::now())
            .expect("an issued certificate")
    }

    /// Issues a serving certificate for DNS names and IP addresses.
    pub fn serving_certificate(
        &self,
        names: &[&str],
    ) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        self.intermediate
            .issue_serving(&names, DAY, SystemTime::now())
            .expect("a serving certificate")
    }

    /// Returns a CRL (PEM) that revokes the given certificates, signed by the intermediate CA.
    pub fn revoke(&self, certs: &[&WorkloadCert]) -> String {
        let leaves: Vec<_> = certs
            .iter()
            .filter_map(|cert| cert.chain().first().cloned())
            .collect();
        self.intermediate
            .revoke(&leaves, SystemTime::now())
            .expect("a revocation list")
    }

    /// Returns a CRL (PEM) that revokes the intermediate CA itself, signed by the root.
    pub fn revoke_intermediate(&self) -> String {
        self.root
            .revoke(self.intermediate.intermediates(), SystemTime::now())
            .expect("a revocation list")
    }

    /// Returns the root certificate as PEM.
    pub fn root_pem(&self) -> String {
        self.root.root_pem()
    }

    /// Returns the root certificate as a client's setting for connections to the control plane.
    pub fn root_ca(&self) -> RootCa {
        RootCa::Pem(self.root_pem())
    }
}

/// Returns a CRL (PEM) that revokes a certificate, signed by the CA in Istio's four files, which `read` returns by
/// name.
pub fn revoke_with_ca_files(read: impl Fn(&str) -> String, cert: &WorkloadCert) -> String {
    let leaf = cert.chain().first().cloned();
    authority_from_files(read)
        .revoke(leaf.as_slice(), SystemTime::now())
        .expect("a revocation list")
}

/// Returns the CSR API's response for any identity, from the CA in Istio's four files, which `read` returns by name.
pub fn csr_response_from_files(
    read: impl Fn(&str) -> String,
    request_pem: &str,
    identity: &Identity,
) -> Vec<String> {
    authority_from_files(read)
        .issue(request_pem, identity, DAY, SystemTime::now())
        .expect("an issued certificate")
}

fn authority_from_files(read: impl Fn(&str) -> String) -> Authority {
    let [own, key, chain, root] = [
        "ca-cert.pem",
        "ca-key.pem",
        "cert-chain.pem",
        "root-cert.pem",
    ]
    .map(read);
    Authority::from_pem(&own, &key, &chain, &root).expect("an authority")
}

fn pem(text: &str) -> Vec<CertificateDer<'static>> {
    use rustls_pki_types::pem::PemObject;
    CertificateDer::pem_slice_iter(text.as_bytes())
        .map(|der| der.expect("PEM"))
        .collect()
}
