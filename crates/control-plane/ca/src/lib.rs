//! The certificate authority (CA) of the mesh: its key and certificates, their replacement, and the CSR API.
//!
//! [`material`] is a CA as PEM texts, stored in a directory of files or in a Secret ([`CaSecret`]). [`trust`] replaces
//! the CA that signs; [`service`] serves the CSR API with it. [`distribute_config_maps`] writes the root certificates,
//! and the accepted [`trust_domains`], into every namespace.
//!
//! # Changing the root without an outage
//!
//! 1. Add the new root certificate to the old one in `root-cert.pem` (or `ca.crt`), and leave certificate and key
//!    unchanged. Both roots are distributed; proxies get them with their next certificates, at the latest after
//!    half the lifetime of a certificate (12 hours).
//! 2. Replace certificate, chain and key by those that the new root has signed; keep both roots.
//! 3. After the lifetime of a certificate (24 hours), remove the old root.
//!
//! Omitting a step would split the mesh into proxies that do not accept each other's certificates. A running control
//! plane rejects a CA that would do so, and keeps the current one.

#![forbid(unsafe_code)]

mod config_maps;
mod directory;
pub mod material;
mod metrics;
mod secret;
pub mod service;
pub mod trust;
pub mod trust_domains;

pub use config_maps::distribute_config_maps;
pub use directory::reload_on_change as follow_directory;
pub use material::{CaError, CaMaterial, open_or_create, write_root};
pub use metrics::CaMetrics;
pub use secret::{CaSecret, SecretError};
pub use service::CertificateService;
pub use trust::{CaTrust, TrustPublisher};
