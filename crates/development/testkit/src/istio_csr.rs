//! Simulates cert-manager's istio-csr: a CSR API with the same checks, over TLS under its own root. The keys of its CA
//! and of its server are RSA, istio-csr's default.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use ambit_model::Identity;
use ambit_tls::TlsSettings;
use ambit_wire::citadel::{
    IstioCertificateRequest, IstioCertificateResponse,
    istio_certificate_service_server::IstioCertificateService,
};
use parking_lot::Mutex;
use prost_types::value::Kind;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_RSA_SHA256, SanType,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tonic::{Request, Response, Status};

use crate::csr_api::CsrApi;

/// Maximum lifetime of certificates, istio-csr's default.
const MAX_LIFETIME: Duration = Duration::from_secs(3600);
/// Host name of istio-csr in a cluster.
pub const ISTIO_CSR_NAME: &str = "cert-manager-istio-csr.cert-manager.svc";

/// Running istio-csr server, which stops when dropped.
#[derive(Debug)]
pub struct IstioCsr {
    /// Address of the server, whose certificate is for [`ISTIO_CSR_NAME`] alone.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    _api: CsrApi,
}

struct Shared {
    issuer: Issuer<'static, KeyPair>,
    root_pem: String,
    /// Service accounts by their tokens.
    accounts: BTreeMap<String, Identity>,
    /// Service accounts that may impersonate others.
    node_accounts: Vec<Identity>,
    issued: Mutex<Vec<Identity>>,
}

impl Shared {
    fn sign_certificate(
        &self,
        mut request: CertificateSigningRequestParams,
        life: Duration,
    ) -> Result<Vec<String>, rcgen::Error> {
        request.params.not_before = SystemTime::now().into();
        request.params.not_after = (SystemTime::now() + life).into();
        request.params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        let leaf = request.signed_by(&self.issuer)?;
        Ok(vec![leaf.pem(), self.root_pem.clone()])
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl IstioCsr {
    /// Starts the server on a listener. It authenticates service accounts by their tokens, and lets `node_accounts`
    /// impersonate others.
    pub fn start_on(
        listener: TcpListener,
        accounts: &[(&str, &Identity)],
        node_accounts: &[Identity],
    ) -> Self {
        let key = KeyPair::generate_for(&PKCS_RSA_SHA256).expect("a key");
        let mut root = ca_params();
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        root.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        root.distinguished_name
            .push(rcgen::DnType::CommonName, "istio-ca");
        let root_pem = root.self_signed(&key).expect("a root").pem();
        let issuer = Issuer::new(root, key);
        let (chain, key) = serving_certificate(&issuer);
        let accounts = accounts.iter();
        let shared = Arc::new(Shared {
            issuer,
            root_pem,
            accounts: accounts
                .map(|(token, identity)| ((*token).to_owned(), (*identity).clone()))
                .collect(),
            node_accounts: node_accounts.to_vec(),
            issued: Mutex::default(),
        });
        let service = Service(shared.clone());
        let api = CsrApi::start(listener, &TlsSettings::default(), chain, key, service);
        Self {
            address: api.address,
            shared,
            _api: api,
        }
    }

    /// Returns the root certificate as PEM.
    pub fn root_pem(&self) -> &str {
        &self.shared.root_pem
    }

    /// Returns the identities for which certificates were issued so far.
    pub fn issued(&self) -> Vec<Identity> {
        self.shared.issued.lock().clone()
    }
}

fn ca_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.not_before = (SystemTime::now() - Duration::from_secs(60)).into();
    params.not_after = (SystemTime::now() + 24 * MAX_LIFETIME).into();
    params
}

fn serving_certificate(
    issuer: &Issuer<'static, KeyPair>,
) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let key = KeyPair::generate_for(&PKCS_RSA_SHA256).expect("a key");
    let mut leaf = ca_params();
    let name = ISTIO_CSR_NAME.try_into().expect("a name");
    leaf.subject_alt_names = vec![SanType::DnsName(name)];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let leaf = leaf.signed_by(&key, issuer).expect("a certificate");
    (
        vec![leaf.into()],
        PrivateKeyDer::Pkcs8(key.serialize_der().into()),
    )
}

#[derive(Debug)]
struct Service(Arc<Shared>);

impl Service {
    /// Returns the identity for which a call may request a certificate, or the error.
    fn identity(&self, request: &Request<IstioCertificateRequest>) -> Result<Identity, String> {
        let header = |name: &str| {
            let value = request.metadata().get(name);
            value.and_then(|value| value.to_str().ok())
        };
        if header("clusterid") != Some("Kubernetes") {
            return Err("clusterid".to_owned());
        }
        let token = header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        let account = token.and_then(|token| self.0.accounts.get(token));
        let account = account.ok_or("the token is nobody's")?;
        let metadata = request.get_ref().metadata.as_ref();
        let impersonated = metadata.and_then(|all| all.fields.get("ImpersonatedIdentity"));
        let Some(impersonated) = impersonated else {
            return Ok(account.clone());
        };
        if !self.0.node_accounts.contains(account) {
            return Err(format!("{account} may not impersonate"));
        }
        match &impersonated.kind {
            Some(Kind::StringValue(text)) => text.parse().map_err(|_| text.clone()),
            other => Err(format!("{other:?}")),
        }
    }

    /// Parses a certificate request, which must name exactly this identity.
    fn parse_certificate_request(
        text: &str,
        identity: &Identity,
    ) -> Result<CertificateSigningRequestParams, String> {
        let request = CertificateSigningRequestParams::from_pem(text);
        let request = request.map_err(|error| error.to_string())?;
        let names = &request.params.subject_alt_names;
        let is_identity = |name: &SanType| matches!(name, SanType::URI(uri) if uri.as_str() == identity.to_string());
        match names.as_slice() {
            [name] if is_identity(name) => {}
            other => return Err(format!("names {other:?}, not {identity}")),
        }
        if request.params.distinguished_name.iter().next().is_some() {
            return Err("a subject".to_owned());
        }
        Ok(request)
    }
}

#[tonic::async_trait]
impl IstioCertificateService for Service {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        let refuse = |_why: String| Status::unauthenticated("request authenticate failure");
        let identity = self.identity(&request).map_err(refuse)?;
        let request = request.into_inner();
        let signed = Self::parse_certificate_request(&request.csr, &identity).map_err(refuse)?;
        let requested = u64::try_from(request.validity_duration)
            .map_err(|_| Status::internal("failed to sign certificate request"))?;
        let life = Duration::from_secs(requested).min(MAX_LIFETIME);
        let cert_chain = self.0.sign_certificate(signed, life);
        let cert_chain = cert_chain.map_err(|error| Status::internal(error.to_string()))?;
        self.0.issued.lock().push(identity);
        Ok(Response::new(IstioCertificateResponse { cert_chain }))
    }
}
