//! The CSR API: `istio.v1.auth.IstioCertificateService`.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use ambit_derive::{PodDirectory, PodFacts};
use ambit_issuer::IssueError;
use ambit_model::{ArcStr, Identity};
use ambit_wire::citadel::{
    IstioCertificateRequest, IstioCertificateResponse,
    istio_certificate_service_server::IstioCertificateService,
};
use parking_lot::RwLock;
use prost_types::value::Kind;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::Trust;
use crate::{access::Access, auth::Caller, metrics::Metrics};

/// Life of a certificate for which none is asked.
const DEFAULT_TTL: Duration = Duration::from_secs(24 * 3600);
/// Longest life that may be asked for.
const MAX_TTL: Duration = Duration::from_secs(90 * 24 * 3600);

/// How long to wait for the pod that a certificate is asked for.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Why a caller does not get an identity. Only logged: callers learn nothing about pods.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Not a node proxy.
    #[error("{0} is not a trusted node account")]
    NotTrusted(String),
    /// Not an identity.
    #[error("{0:?} is not a SPIFFE identity of a Kubernetes service account")]
    BadIdentity(String),
    /// Another mesh's.
    #[error("{0} is of another trust domain")]
    TrustDomain(String),
    /// A token that is bound to no pod names no node.
    #[error("the caller's token is not bound to a pod")]
    NotBound,
    /// The pod is not there.
    #[error("the caller's pod {0} does not exist")]
    UnknownPod(String),
    /// The pod is another of the same name.
    #[error("the caller's token is of an earlier pod {0}")]
    OtherUid(String),
    /// The pod ended.
    #[error("the caller's pod {0} has ended")]
    PodEnded(String),
    /// The pod runs under another account.
    #[error("the caller's pod {0} does not run under the caller's service account")]
    OtherAccount(String),
    /// The pod is not on any node.
    #[error("the caller's pod {0} is on no node")]
    NoNode(String),
    /// Nothing of that identity runs where the caller does.
    #[error("no live pod of {identity} is on node {node}")]
    NotOnNode {
        /// What was asked for.
        identity: Identity,
        /// Where the caller runs.
        node: ArcStr,
    },
}

impl Denied {
    /// Whether it may be that the pod is only not known here yet.
    fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::UnknownPod(_) | Self::OtherUid(_) | Self::NoNode(_) | Self::NotOnNode { .. }
        )
    }
}

/// Whether a node proxy may act for an identity: it is the very pod its token says, alive, and a live
/// pod of that identity is on its node.
pub fn check_impersonation(
    access: &Access,
    pods: &PodDirectory,
    caller: &Caller,
    requested: &str,
    trust_domain: &str,
) -> Result<Identity, Denied> {
    if !access.is_trusted_node(caller) {
        return Err(Denied::NotTrusted(caller.to_string()));
    }
    let identity: Identity = requested
        .parse()
        .map_err(|_| Denied::BadIdentity(requested.chars().take(256).collect()))?;
    if identity.trust_domain != trust_domain {
        return Err(Denied::TrustDomain(identity.to_string()));
    }
    let pod = own_pod(pods, caller)?;
    if !pods.runs_on(&pod.node, &identity.namespace, &identity.service_account) {
        return Err(Denied::NotOnNode {
            identity,
            node: pod.node.clone(),
        });
    }
    Ok(identity)
}

/// The pod that a caller is by its token: there, alive, on a node, and under the caller's account.
fn own_pod<'a>(pods: &'a PodDirectory, caller: &Caller) -> Result<&'a PodFacts, Denied> {
    let bound = caller.pod.as_ref().ok_or(Denied::NotBound)?;
    let name = || format!("{}/{}", caller.namespace, bound.name);
    let pod = pods
        .pod(&caller.namespace, &bound.name)
        .ok_or_else(|| Denied::UnknownPod(name()))?;
    if bound.uid.is_empty() || pod.uid != bound.uid {
        return Err(Denied::OtherUid(name()));
    }
    if !pod.live {
        return Err(Denied::PodEnded(name()));
    }
    if pod.service_account != caller.service_account {
        return Err(Denied::OtherAccount(name()));
    }
    if pod.node.is_empty() {
        return Err(Denied::NoNode(name()));
    }
    Ok(pod)
}

/// The service.
#[derive(Debug)]
pub struct CertificateService {
    /// Who signs at present.
    pub trust: watch::Receiver<Arc<Trust>>,
    /// Who may call.
    pub access: Arc<Access>,
    /// Which pods run where.
    pub pods: Arc<RwLock<PodDirectory>>,
    /// Grows whenever `pods` may have changed; 0 until the pods at the start are known.
    pub followed: watch::Receiver<u64>,
    /// The mesh's trust domain.
    pub trust_domain: ArcStr,
    /// Counters.
    pub metrics: Arc<Metrics>,
}

impl CertificateService {
    async fn identity(
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
        let denied = |denied: Denied| {
            tracing::warn!(%caller, %denied, "refused a certificate");
            self.metrics.csr("denied");
            Status::unauthenticated("the caller may not act for the identity asked for")
        };
        if requested.is_empty() {
            if self.access.waypoint(caller).is_some() {
                // Pods believe whoever has a waypoint's identity.
                self.patiently(|pods| own_pod(pods, caller).map(drop))
                    .await
                    .map_err(denied)?;
            }
            return Ok(Identity::new(
                self.trust_domain.clone(),
                caller.namespace.clone(),
                caller.service_account.clone(),
            ));
        }
        let check = |pods: &PodDirectory| {
            check_impersonation(&self.access, pods, caller, requested, &self.trust_domain)
        };
        self.patiently(check).await.map_err(denied)
    }

    /// A node proxy hears of a new pod from its agent, perhaps before we do from the source of
    /// objects: a refusal that another object could lift waits for one, so that the pod's first
    /// connection need not wait for the proxy's next attempt.
    async fn patiently<T>(
        &self,
        check: impl Fn(&PodDirectory) -> Result<T, Denied>,
    ) -> Result<T, Denied> {
        let mut followed = self.followed.clone();
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let started = *followed.borrow_and_update() > 0;
            let checked = check(&self.pods.read());
            match checked {
                Err(denied) if denied.may_pass() || !started => {
                    let changed = tokio::time::timeout_at(deadline, followed.changed()).await;
                    if !matches!(changed, Ok(Ok(()))) {
                        return Err(denied);
                    }
                }
                checked => return checked,
            }
        }
    }
}

/// The life to issue for; an error if more is asked than may be had.
fn ttl(seconds: i64) -> Result<Duration, Status> {
    let Ok(seconds @ 1..) = u64::try_from(seconds) else {
        return Ok(DEFAULT_TTL);
    };
    let ttl = Duration::from_secs(seconds);
    if ttl > MAX_TTL {
        let message = format!(
            "at most {} seconds may be asked for, not {seconds}",
            MAX_TTL.as_secs()
        );
        return Err(Status::invalid_argument(message));
    }
    Ok(ttl)
}

#[tonic::async_trait]
impl IstioCertificateService for CertificateService {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        self.metrics.csr("received");
        let caller = self
            .access
            .caller(request.metadata(), request.extensions())
            .await
            .inspect_err(|_| {
                self.metrics.csr("unauthenticated");
            })?;
        let request = request.into_inner();
        let identity = self.identity(&caller, &request).await?;
        let ttl = ttl(request.validity_duration)?;
        let trust = Arc::clone(&self.trust.borrow());
        // Signing takes the processor for some hundred microseconds: not long enough to hand on.
        match trust
            .authority
            .issue(&request.csr, &identity, ttl, SystemTime::now())
        {
            Ok(cert_chain) => {
                self.metrics.csr("issued");
                tracing::debug!(%caller, %identity, "issued a certificate");
                Ok(Response::new(IstioCertificateResponse { cert_chain }))
            }
            Err(error) => {
                self.metrics.csr("failed");
                tracing::warn!(%caller, %identity, %error, "a certificate request cannot be fulfilled");
                Err(match error {
                    IssueError::TooLarge(_) | IssueError::Request(_) | IssueError::KeyKind => {
                        Status::invalid_argument(error.to_string())
                    }
                    _ => Status::internal("the certificate authority cannot sign"),
                })
            }
        }
    }
}

#[cfg(test)]
mod tests;
