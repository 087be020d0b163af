//! The certificate authority: its material, and who gets which certificate.

pub mod material;
pub mod service;

pub use material::{CaError, open_authority, write_root};
pub use service::{CertificateService, Denied, check_impersonation};
