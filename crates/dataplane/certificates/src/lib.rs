//! Certificates of a proxy's workloads: fetches them from the control plane's CSR API or from a SPIFFE agent, renews
//! them, and provides them to connections.
//!
//! Private keys are generated here, or by the agent, and stay in memory; only a [`CertificateCache`] stores them beyond
//! the life of the process. The crate `ambit-tls` uses the certificates in handshakes.
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
pub use spiffe::{DelegatedIdentity, SpiffeSocket, SpiffeSocketError, WorkloadApi};
pub use spiffe_error::SpiffeError;
pub use store::{CertError, Certificates, CertificatesOptions, Priority};
pub use svid::SvidError;
