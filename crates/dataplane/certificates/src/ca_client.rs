//! Client interface of a certificate authority, which the certificate store uses, and its implementation for Istio's
//! CSR API.

use std::{collections::BTreeSet, fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use ambit_control_channel::{CallHeadersError, CallMetadata};
use ambit_model::Identity;
use ambit_rt::ErrorChain;
use ambit_tls::{ChainError, TlsSettings, WorkloadCert};
use ambit_wire::citadel::{
    IstioCertificateRequest, istio_certificate_service_client::IstioCertificateServiceClient,
};
use parking_lot::Mutex;
use prost_types::{Struct, Value, value::Kind};
use rustls_pki_types::PrivateKeyDer;
use tokio::sync::Notify;
use tonic::{Request, transport::Channel};
use zeroize::Zeroizing;

use crate::{CertificateRequest, CsrError, SpiffeError};

/// Client of a certificate authority (CA).
pub trait CaClient: Send + Sync + 'static {
    /// Fetches a certificate with a new key. The caller limits how many fetches run at once; the implementation
    /// limits how long each takes.
    fn fetch<'a>(
        &'a self,
        identity: &'a Identity,
    ) -> Pin<Box<dyn Future<Output = Result<WorkloadCert, FetchError>> + Send + 'a>>;

    /// Subscribes to the certificates of an identity. The certificate store calls this before the first fetch.
    fn subscribe(&self, _identity: &Identity) {}

    /// Ends the subscription to the certificates of an identity.
    fn unsubscribe(&self, _identity: &Identity) {}

    /// Returns the queue of identities whose certificates the CA has replaced unasked; always empty for a CA that does
    /// not push certificates.
    fn renewals(&self) -> Renewals {
        Renewals::default()
    }
}

/// Queue of identities whose certificates must be fetched before their regular renewal. Clones share the queue.
#[derive(Clone, Debug, Default)]
pub struct Renewals(Arc<PendingRenewals>);

#[derive(Debug, Default)]
struct PendingRenewals {
    identities: Mutex<BTreeSet<Identity>>,
    added: Notify,
}

impl Renewals {
    /// Adds an identity to the queue.
    pub fn add(&self, identity: Identity) {
        self.0.identities.lock().insert(identity);
        self.0.added.notify_one();
    }

    /// Removes and returns the next identity; waits while the queue is empty.
    pub async fn next(&self) -> Identity {
        loop {
            let next = self.0.identities.lock().pop_first();
            match next {
                Some(identity) => return identity,
                None => self.0.added.notified().await,
            }
        }
    }
}

/// Cache of certificates that outlives the process, for a warm start after a restart.
pub trait CertificateCache: Send + Sync + 'static {
    /// Stores the CA's response with its private key.
    fn insert(&self, identity: &Identity, key: &PrivateKeyDer<'static>, answer: &[String]);

    /// Removes and returns the private key and the CA's response that an earlier process stored.
    fn take(&self, identity: &Identity) -> Option<(PrivateKeyDer<'static>, Vec<String>)>;
}

/// Error of fetching a certificate.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The certificate request could not be built.
    #[error(transparent)]
    Request(#[from] CsrError),
    /// The call's metadata, such as the token, could not be built.
    #[error(transparent)]
    Headers(#[from] CallHeadersError),
    /// The CA rejected the request, or could not be reached.
    #[error("the CA answered {}", DisplayStatus(.0))]
    Status(Box<tonic::Status>),
    /// The CA did not respond in time.
    #[error("the CA did not answer within {0:?}")]
    TimedOut(Duration),
    /// The CA's response contains an invalid certificate chain.
    #[error("the CA's answer cannot be used")]
    InvalidResponse(#[from] ChainError),
    /// The SPIFFE agent did not provide the certificate.
    #[error(transparent)]
    Spiffe(#[from] SpiffeError),
    /// The fetching task panicked; the log has the details.
    #[error("the request for the certificate panicked")]
    Panicked,
    /// The fetched certificate has expired already.
    #[error("the certificate has expired")]
    Expired,
}

impl FetchError {
    /// Whether the CA rejected the request for this certificate, as opposed to a transient failure to reach the CA.
    pub fn is_refusal(&self) -> bool {
        use tonic::Code;
        match self {
            Self::Status(status) => matches!(
                status.code(),
                Code::Unauthenticated
                    | Code::PermissionDenied
                    | Code::InvalidArgument
                    | Code::FailedPrecondition
                    | Code::NotFound
            ),
            Self::Request(_) | Self::InvalidResponse(_) | Self::Expired => true,
            Self::Spiffe(error) => error.is_refusal(),
            Self::Headers(_) | Self::TimedOut(_) | Self::Panicked => false,
        }
    }
}

/// Displays a gRPC status as code, message and cause (for instance why the connection failed).
struct DisplayStatus<'a>(&'a tonic::Status);

impl fmt::Display for DisplayStatus<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.code(), self.0.message())?;
        match std::error::Error::source(self.0) {
            Some(cause) => write!(f, ": {}", ErrorChain(cause)),
            None => Ok(()),
        }
    }
}

/// Options of the CSR API client ([`CsrClient`]).
#[derive(Clone, Debug)]
pub struct CsrClientOptions {
    /// Requested lifetime of certificates (`SECRET_TTL`).
    pub ttl: Duration,
    /// Identity of the caller's own service account: requests for it do not set the impersonated identity, all others
    /// do. `None` for node proxies, which request certificates for their pods only.
    pub own_identity: Option<Identity>,
    /// Timeout of a request to the CA.
    pub timeout: Duration,
}

impl Default for CsrClientOptions {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(24 * 3600),
            own_identity: None,
            timeout: Duration::from_secs(10),
        }
    }
}

/// Client of Istio's CSR API (`istio.v1.auth.IstioCertificateService`).
#[derive(Clone)]
pub struct CsrClient {
    client: IstioCertificateServiceClient<Channel>,
    headers: CallMetadata,
    settings: TlsSettings,
    options: CsrClientOptions,
    cache: Option<Arc<dyn CertificateCache>>,
}

impl CsrClient {
    /// Creates a client over a channel of [`ambit_control_channel::channel`].
    pub fn new(
        channel: Channel,
        headers: CallMetadata,
        settings: TlsSettings,
        options: CsrClientOptions,
    ) -> Self {
        let client = IstioCertificateServiceClient::new(channel).max_decoding_message_size(1 << 20);
        Self {
            client,
            headers,
            settings,
            options,
            cache: None,
        }
    }

    /// Makes the client read certificates from a cache before it requests them from the CA.
    #[must_use]
    pub fn with_cache(mut self, cache: Arc<dyn CertificateCache>) -> Self {
        self.cache = Some(cache);
        self
    }

    /// Returns the cached certificate of an identity, if it is still usable.
    fn cached_certificate(&self, identity: &Identity) -> Option<WorkloadCert> {
        let (key, answer) = self.cache.as_ref()?.take(identity)?;
        match WorkloadCert::from_response(&self.settings, identity, key, &answer) {
            Ok(certificate) => Some(certificate),
            Err(error) => {
                tracing::info!(%identity, %error, "the cached certificate cannot be used");
                None
            }
        }
    }

    async fn request_certificate(&self, identity: &Identity) -> Result<WorkloadCert, FetchError> {
        if let Some(certificate) = self.cached_certificate(identity) {
            return Ok(certificate);
        }
        let CertificateRequest { pem, key } = CertificateRequest::new(identity)?;
        let mut request = Request::new(IstioCertificateRequest {
            csr: pem,
            validity_duration: i64::try_from(self.options.ttl.as_secs()).unwrap_or(i64::MAX),
            metadata: (self.options.own_identity.as_ref() != Some(identity))
                .then(|| impersonation_metadata(identity)),
        });
        self.headers.apply(request.metadata_mut()).await?;
        let mut client = self.client.clone();
        let call = client.create_certificate(request);
        let answer = tokio::time::timeout(self.options.timeout, call)
            .await
            .map_err(|_| FetchError::TimedOut(self.options.timeout))?
            .map_err(|status| FetchError::Status(Box::new(status)))?;
        let chain = answer.into_inner().cert_chain;
        let cached = self
            .cache
            .as_ref()
            .map(|cache| (cache, Zeroizing::new(key.clone_key())));
        let certificate = WorkloadCert::from_response(&self.settings, identity, key, &chain)?;
        if let Some((cache, key)) = cached {
            cache.insert(identity, &key, &chain);
        }
        Ok(certificate)
    }
}

impl CaClient for CsrClient {
    fn fetch<'a>(
        &'a self,
        identity: &'a Identity,
    ) -> Pin<Box<dyn Future<Output = Result<WorkloadCert, FetchError>> + Send + 'a>> {
        Box::pin(self.request_certificate(identity))
    }
}

impl fmt::Debug for CsrClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CsrClient")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

fn impersonation_metadata(identity: &Identity) -> Struct {
    let identity = Value {
        kind: Some(Kind::StringValue(identity.to_string())),
    };
    Struct {
        fields: [("ImpersonatedIdentity".to_owned(), identity)].into(),
    }
}
