//! Tests of handshakes and certificates, with the shared test PKI.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

mod chain;
mod crl;
mod handshake;
mod hostile;
mod trust_domains;
