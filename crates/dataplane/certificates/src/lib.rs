//! Certificates of a proxy's workloads: fetched from the control plane's CSR API or from a SPIFFE agent, renewed, and
//! provided to connections.
//!
//! Private keys are generated here, or by the agent, and stay in memory; only a [`CertificateCache`] keeps them
//! beyond the process. How a handshake uses a certificate is in `ambit-tls`.
#![forbid(unsafe_code)]

mod ca_client;
mod counts;
mod csr;
mod dump;
mod metrics;
mod spiffe;
mod spiffe_error;
mod store;
mod svid;

pub use ca_client::{
    CaClient, CertificateCache, CsrClient, CsrClientOptions, FetchError, Renewals,
};
pub use counts::CertificateCounts;
pub use csr::{CertificateRequest, CsrError};
pub use dump::{CertificateDump, CertificateEntry};
pub use metrics::CertificateMetrics;
pub use spiffe::{DelegatedIdentity, SocketError, SpiffeSocket, WorkloadApi};
pub use spiffe_error::SpiffeError;
pub use store::{CertError, Certificates, CertificatesOptions, Priority};
pub use svid::SvidError;
