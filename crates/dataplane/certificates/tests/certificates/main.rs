//! The clients of the CSR API and of SPIFFE agents, and the certificate store, against the shared test PKI.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "these are tests"
)]

mod csr;
mod istio_csr;
mod spiffe;
mod store;
