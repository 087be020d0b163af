//! The certificate authority of the mesh: its material, who signs at present, and who gets which certificate.
//!
//! [`material`] is a root as it is stored, in a directory of files or in a Secret ([`CaSecret`]). [`trust`] replaces the
//! authority that signs; [`service`] serves the CSR API with it. [`distribute`] writes its roots, and the accepted
//! [`trust_domains`], into every namespace.
//!
//! # Changing the root without an outage
//!
//! 1. Put the new root beside the old one into `root-cert.pem` (or `ca.crt`), leave certificate and key
//!    as they are. Both are distributed; proxies take them with their next certificates, at the
//!    latest after half the life of one (12 hours).
//! 2. Replace certificate, chain and key by those under the new root; keep both roots.
//! 3. After the life of a certificate (24 hours) take the old root out.
//!
//! A step left out would cut the mesh in two. What would is refused while running, and the present
//! authority stays in force.

#![forbid(unsafe_code)]

mod config_maps;
mod directory;
pub mod material;
mod metrics;
mod secret;
pub mod service;
pub mod trust;
pub mod trust_domains;

pub use config_maps::distribute;
pub use directory::follow as follow_directory;
pub use material::{CaError, Material, open_or_make, write_root};
pub use metrics::CaMetrics;
pub use secret::{CaSecret, SecretError};
pub use service::CertificateService;
pub use trust::{Trust, TrustPublisher};
