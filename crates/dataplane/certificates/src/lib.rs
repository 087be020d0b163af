//! The certificates of a proxy's workloads: how they are requested, fetched from the control plane's CSR
//! API, renewed and handed to connections.
//!
//! Private keys are made here and stay in memory; what keeps them beyond the process is a
//! [`CertificateCache`]. What a handshake makes of a certificate is `ambit-tls`.
#![forbid(unsafe_code)]

mod ca_client;
mod csr;
mod dump;
mod store;

pub use ca_client::{CaClient, CertificateCache, CsrClient, CsrClientOptions, FetchError};
pub use csr::{CertificateRequest, CsrError};
pub use dump::{CertificateDump, CertificateEntry};
pub use store::{CertError, Certificates, CertificatesOptions, Priority};
