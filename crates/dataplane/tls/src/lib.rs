//! Mesh identity in TLS: a workload's certificate, the SPIFFE checks on both sides of a handshake, revocation lists,
//! accepted trust domains; the server name (SNI) of TLS connections that are passed through; and TLS to servers
//! outside of the mesh.
//!
//! The crate knows nothing of HBONE, gRPC, Kubernetes or where certificates come from. Private keys stay in memory.
#![forbid(unsafe_code)]

mod chain;
mod chain_error;
mod client_hello;
mod crl;
mod followed_file;
mod handshake;
mod origination;
pub mod pem;
mod settings;
mod trust_domains;
mod verify;
mod workload_cert;

pub use chain::{count_uri_names, split_concatenated_der, validity};
pub use chain_error::ChainError;
pub use client_hello::{FirstMessage, HelloError, HelloReader, MAX_CLIENT_HELLO_BYTES};
pub use crl::{CrlError, RevocationLists};
pub use handshake::{
    ClientStream, HandshakeError, ServerStream, accept, connect, failure_reason, peer_identity,
};
pub use origination::{
    ClientKeyPair, OriginatedTls, OriginatedTlsConnectError, OriginatedTlsError, TrustedAuthorities,
};
pub use settings::{ALPN_H2, TlsSettings};
pub use trust_domains::{TrustDomains, TrustDomainsError};
pub use verify::{PeerIdentityError, PeerRole};
pub use workload_cert::{TrustWithdrawalReason, WorkloadCert};
