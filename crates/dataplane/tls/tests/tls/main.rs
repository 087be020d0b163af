//! Handshakes, certificates and the CSR API, against the shared test PKI.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

mod certificates;
mod chain;
mod crl;
mod csr;
mod handshake;
mod hostile;
