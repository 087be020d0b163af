//! The CSR API's client and the certificate store, against the shared test PKI.
#![expect(clippy::unwrap_used, reason = "these are tests")]

mod csr;
mod istio_csr;
mod spiffe;
mod store;
