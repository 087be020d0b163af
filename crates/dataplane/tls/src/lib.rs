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
mod outward;
pub mod pem;
mod settings;
mod trust_domains;
mod verify;
mod workload_cert;

pub use chain::{concatenated, uri_names, validity};
pub use chain_error::ChainError;
pub use client_hello::{FirstMessage, HelloError, HelloReader, MAX_CLIENT_HELLO};
pub use crl::{CrlError, Crls};
pub use handshake::{
    ClientStream, HandshakeError, ServerStream, accept, connect, peer_identity, reason_of,
};
pub use outward::{Authorities, ClientKeyPair, Outward, OutwardConnectError, OutwardError};
pub use settings::{ALPN_H2, TlsSettings};
pub use trust_domains::{TrustDomains, TrustDomainsError};
pub use verify::{Peer, PeerIdentityError};
pub use workload_cert::{Withdrawal, WorkloadCert};
