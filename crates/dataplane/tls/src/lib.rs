//! Mesh identity in TLS: workload certificates and their renewal, the SPIFFE checks on both sides
//! of a handshake, the CSR API client, gRPC channels with TLS, and what a CA needs to issue.
//!
//! Knows nothing of HBONE, xDS records or Kubernetes. Private keys are made here and stay in memory; what
//! keeps them beyond the process is a [`Vault`].
#![forbid(unsafe_code)]

pub mod ca;
mod ca_client;
mod call;
mod certificates;
mod chain;
mod crl;
mod csr;
mod dump;
pub mod grpc;
mod handshake;
mod roots;
mod settings;
mod verify;
mod workload_cert;

pub use ca_client::{CaClient, CsrClient, CsrClientOptions, FetchError, Vault};
pub use call::{CallHeaders, CallHeadersError, TokenSource};
pub use certificates::{CertError, Certificates, CertificatesOptions, Priority};
pub use chain::ChainError;
pub use crl::{CrlError, Crls};
pub use csr::{CertificateRequest, CsrError};
pub use dump::{CertificateDump, CertificateEntry};
pub use handshake::{
    ClientStream, HandshakeError, ServerStream, accept, connect, peer_identity, reason_of,
};
pub use roots::{RootCa, RootCaError};
pub use settings::TlsSettings;
pub use verify::PeerIdentityError;
pub use workload_cert::{PeerRole, WorkloadCert};
