//! Tests of the clients of the CSR API and of SPIFFE agents, and of the certificate store, with the shared test PKI.
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
