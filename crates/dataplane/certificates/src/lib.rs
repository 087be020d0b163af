//! The certificates of a proxy's workloads: requested, fetched from the control plane's CSR API, renewed,
//! and given to connections.
//!
//! Private keys are made here and stay in memory; only a [`CertificateCache`] keeps them beyond the
//! process. How a handshake uses a certificate is in `ambit-tls`.
#![forbid(unsafe_code)]

mod ca_client;
mod csr;
mod dump;
mod metrics;
mod store;

pub use ca_client::{CaClient, CertificateCache, CsrClient, CsrClientOptions, FetchError};
pub use csr::{CertificateRequest, CsrError};
pub use dump::{CertificateDump, CertificateEntry};
pub use metrics::{CertificateCounts, CertificateMetrics};
pub use store::{CertError, Certificates, CertificatesOptions, Priority};
