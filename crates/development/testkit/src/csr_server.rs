//! Scripted server of the CSR API over loopback TLS.

use std::{collections::VecDeque, net::SocketAddr, sync::Arc, time::Duration};

use ambit_model::Identity;
use ambit_wire::citadel::{
    IstioCertificateRequest, IstioCertificateResponse,
    istio_certificate_service_server::IstioCertificateService,
};
use parking_lot::Mutex;
use prost_types::value::Kind;
use tokio::net::TcpListener;
use tonic::{Request, Response, Status, metadata::MetadataMap};

use crate::{Pki, csr_api::CsrApi};

/// Scripted response of the CSR API; without one, the server issues the requested certificate.
#[derive(Clone, Debug)]
pub enum CsrResponse {
    /// Issues a certificate for another identity.
    IssueFor(Identity),
    /// Responds with this certificate chain to any request.
    Chain(Vec<String>),
    /// Responds with a gRPC error.
    Error(Status),
    /// Sends no response at all.
    NoResponse,
}

/// Call that the CSR API received.
#[derive(Clone, Debug)]
pub struct ReceivedCsr {
    /// Certificate request as PEM.
    pub csr: String,
    /// Requested validity in seconds.
    pub validity: i64,
    /// Value `ImpersonatedIdentity` in the request's metadata.
    pub impersonated: Option<String>,
    /// gRPC metadata of the call.
    pub headers: MetadataMap,
}

/// Running scripted server of the CSR API, which stops when dropped.
#[derive(Debug)]
pub struct CsrServer {
    /// Address of the server, whose certificate is for `localhost` and `127.0.0.1`.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    _api: CsrApi,
}

#[derive(Debug)]
struct Shared {
    pki: Arc<Pki>,
    script: Mutex<VecDeque<CsrResponse>>,
    received: Mutex<Vec<ReceivedCsr>>,
}

impl CsrServer {
    /// Starts the server on a free port of 127.0.0.1.
    pub async fn start(pki: Arc<Pki>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        Self::start_on(pki, listener)
    }

    /// Starts the server on a given listener.
    pub fn start_on(pki: Arc<Pki>, listener: TcpListener) -> Self {
        let (chain, key) = pki.serving_certificate(&["localhost", "127.0.0.1"]);
        let shared = Arc::new(Shared {
            pki,
            script: Mutex::default(),
            received: Mutex::default(),
        });
        let service = Service(shared.clone());
        let api = CsrApi::start(listener, &shared.pki.settings, chain, key, service);
        Self {
            address: api.address,
            shared,
            _api: api,
        }
    }

    /// Queues a scripted response for the next call.
    pub fn queue_response(&self, answer: CsrResponse) {
        self.shared.script.lock().push_back(answer);
    }

    /// Returns the calls that the server has received so far.
    pub fn received_requests(&self) -> Vec<ReceivedCsr> {
        self.shared.received.lock().clone()
    }
}

#[derive(Debug)]
struct Service(Arc<Shared>);

#[tonic::async_trait]
impl IstioCertificateService for Service {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        let headers = request.metadata().clone();
        let request = request.into_inner();
        let impersonated = request
            .metadata
            .and_then(|metadata| metadata.fields.get("ImpersonatedIdentity").cloned())
            .and_then(|value| match value.kind {
                Some(Kind::StringValue(text)) => Some(text),
                _ => None,
            });
        self.0.received.lock().push(ReceivedCsr {
            csr: request.csr.clone(),
            validity: request.validity_duration,
            impersonated: impersonated.clone(),
            headers,
        });
        let issue = |identity: &Identity| {
            let ttl = Duration::from_secs(request.validity_duration.unsigned_abs());
            self.0.pki.csr_response(&request.csr, identity, ttl)
        };
        let answer = self.0.script.lock().pop_front();
        let cert_chain = match answer {
            Some(CsrResponse::IssueFor(identity)) => issue(&identity),
            Some(CsrResponse::Chain(chain)) => chain,
            Some(CsrResponse::Error(status)) => return Err(status),
            Some(CsrResponse::NoResponse) => std::future::pending().await,
            None => {
                let identity = impersonated
                    .and_then(|identity| identity.parse().ok())
                    .ok_or_else(|| Status::invalid_argument("no identity"))?;
                issue(&identity)
            }
        };
        Ok(Response::new(IstioCertificateResponse { cert_chain }))
    }
}
