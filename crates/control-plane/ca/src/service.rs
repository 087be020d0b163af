//! The CSR API: `istio.v1.auth.IstioCertificateService`.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use ambit_caller_auth::{
    Caller, CallerAccess,
    caller_pod::{
        CallerDenied, Pods, authorize_own_identity, check_impersonation, check_waypoint_calls,
    },
};
use ambit_derive::PodDirectory;
use ambit_issuer::IssueError;
use ambit_model::{ArcStr, Identity};
use ambit_wire::citadel::{
    IstioCertificateRequest, IstioCertificateResponse,
    istio_certificate_service_server::{IstioCertificateService, IstioCertificateServiceServer},
};
use prost_types::value::Kind;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::{metrics::CaMetrics, trust::CaTrust};

/// Lifetime of a certificate whose request names none, limited by the mesh's maximum lifetime.
const DEFAULT_TTL: Duration = Duration::from_secs(24 * 3600);

/// Maximum size of a request in bytes, which are read before the caller is authenticated.
const MAX_REQUEST_BYTES: usize = 64 << 10;

/// Certificate service of Istio's CSR API.
#[derive(Debug)]
pub struct CertificateService {
    /// CA that currently signs.
    pub trust: watch::Receiver<Arc<CaTrust>>,
    /// Rules for which service accounts may request certificates.
    pub access: Arc<CallerAccess>,
    /// Pods and the nodes on which they run.
    pub pods: Pods,
    /// The mesh's trust domain.
    pub trust_domain: ArcStr,
    /// Maximum lifetime of a certificate, whatever lifetime is requested.
    pub max_ttl: Duration,
    /// Counters of certificate requests by outcome.
    pub metrics: CaMetrics,
}

impl CertificateService {
    /// Returns the gRPC service, with a limit on the size of requests.
    pub fn into_server(self) -> IstioCertificateServiceServer<Self> {
        IstioCertificateServiceServer::new(self).max_decoding_message_size(MAX_REQUEST_BYTES)
    }

    async fn authorize_identity(
        &self,
        caller: &Caller,
        request: &IstioCertificateRequest,
    ) -> Result<Identity, Status> {
        let metadata = request.metadata.as_ref();
        let impersonated =
            metadata.and_then(|metadata| metadata.fields.get("ImpersonatedIdentity"));
        let requested = match impersonated.map(|value| value.kind.as_ref()) {
            None | Some(Some(Kind::NullValue(_))) => "",
            Some(Some(Kind::StringValue(text))) => text.as_str(),
            Some(_) => {
                return Err(Status::invalid_argument(
                    "ImpersonatedIdentity must be a string",
                ));
            }
        };
        let denied = |denied: CallerDenied| {
            tracing::warn!(%caller, %denied, "refused a certificate");
            self.metrics.count_csr("denied");
            Status::unauthenticated("the caller may not impersonate the requested identity")
        };
        if requested.is_empty() {
            let check = |pods: &PodDirectory| authorize_own_identity(&*self.access, pods, caller);
            self.pods
                .retry_while_transient(check)
                .await
                .map_err(denied)?;
            let own = Identity::new(
                self.trust_domain.clone(),
                caller.namespace.clone(),
                caller.service_account.clone(),
            );
            if own.is_for_waypoint_calls() {
                return Err(denied(CallerDenied::ReservedIdentity(own)));
            }
            return Ok(own);
        }
        if let Some(waypoint) = self.access.waypoint_of_caller(caller) {
            let check = |pods: &PodDirectory| {
                let caller = (caller, &waypoint);
                check_waypoint_calls(&*self.access, pods, caller, requested, &self.trust_domain)
            };
            return self.pods.retry_while_transient(check).await.map_err(denied);
        }
        let check = |pods: &PodDirectory| {
            check_impersonation(&*self.access, pods, caller, requested, &self.trust_domain)
        };
        self.pods.retry_while_transient(check).await.map_err(denied)
    }

    /// Returns the lifetime of a certificate for a requested one in seconds. Longer requests get
    /// the maximum: proxies renew by the lifetime in the certificate.
    fn bounded_ttl(&self, seconds: i64) -> Duration {
        let requested = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0);
        let requested = requested.map_or(DEFAULT_TTL, Duration::from_secs);
        requested.min(self.max_ttl)
    }
}

#[tonic::async_trait]
impl IstioCertificateService for CertificateService {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        self.metrics.count_csr("received");
        let caller = self
            .access
            .authenticate_caller(request.metadata(), request.extensions())
            .await
            .inspect_err(|_| {
                self.metrics.count_csr("unauthenticated");
            })?;
        let request = request.into_inner();
        let identity = self.authorize_identity(&caller, &request).await?;
        let ttl = self.bounded_ttl(request.validity_duration);
        let trust = Arc::clone(&self.trust.borrow());
        // Signing takes some hundred microseconds of CPU time, too little to move to another
        // thread.
        match trust
            .authority
            .issue(&request.csr, &identity, ttl, SystemTime::now())
        {
            Ok(cert_chain) => {
                self.metrics.count_csr("issued");
                tracing::debug!(%caller, %identity, "issued a certificate");
                Ok(Response::new(IstioCertificateResponse { cert_chain }))
            }
            Err(error) => {
                self.metrics.count_csr("failed");
                tracing::warn!(%caller, %identity, %error, "a certificate request cannot be fulfilled");
                Err(match error {
                    IssueError::TooLarge(_)
                    | IssueError::InvalidRequest(_)
                    | IssueError::UnsupportedKey => Status::invalid_argument(error.to_string()),
                    _ => Status::internal("the certificate authority cannot sign"),
                })
            }
        }
    }
}
